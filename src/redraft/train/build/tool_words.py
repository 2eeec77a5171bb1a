"""Word lists, written for this project, from which argument values and small talk are composed."""

from __future__ import annotations


def listed(text: str) -> tuple[str, ...]:
    """The entries of a list with commas between them, over any number of lines."""
    return tuple(entry.strip() for entry in text.split(","))


CITIES = listed("""
    Paris, London, Berlin, Madrid, Rome, Vienna, Prague, Warsaw, Lisbon, Dublin, Oslo, Stockholm, Helsinki, Copenhagen,
    Athens, Budapest, Bucharest, Sofia, Zagreb, Belgrade, Amsterdam, Rotterdam, Brussels, Antwerp, Ghent, Zurich,
    Geneva, Basel, Bern, Munich, Hamburg, Cologne, Leipzig, Dresden, Stuttgart, Bremen, Lyon, Marseille, Nice, Bordeaux,
    Toulouse, Lille, Barcelona, Valencia, Seville, Bilbao, Porto, Milan, Naples, Turin, Florence, Venice, Bologna,
    Palermo, Manchester, Liverpool, Leeds, Glasgow, Edinburgh, Cardiff, Belfast, Bristol, Cork, Galway, Bergen,
    Gothenburg, Malmo, Aarhus, Turku, Tampere, Riga, Tallinn, Vilnius, Kaunas, Krakow, Gdansk, Brno, Bratislava,
    Ljubljana, Sarajevo, Skopje, Tirana, Istanbul, Ankara, Izmir, Cairo, Casablanca, Tunis, Algiers, Lagos, Nairobi,
    Accra, Dakar, Addis Ababa, Kampala, Cape Town, Durban, Johannesburg, Harare, Lusaka, Windhoek, Tokyo, Osaka, Kyoto,
    Sapporo, Nagoya, Seoul, Busan, Beijing, Shanghai, Shenzhen, Chengdu, Hong Kong, Taipei, Hanoi, Bangkok, Chiang Mai,
    Kuala Lumpur, Singapore, Jakarta, Manila, Cebu, Mumbai, Delhi, Chennai, Kolkata, Bangalore, Hyderabad, Karachi,
    Lahore, Dhaka, Colombo, Kathmandu, Dubai, Doha, Amman, Beirut, Tel Aviv, Riyadh, Sydney, Melbourne, Brisbane, Perth,
    Adelaide, Auckland, Wellington, Toronto, Montreal, Vancouver, Ottawa, Calgary, Boston, Chicago, Seattle, Portland,
    Denver, Austin, Dallas, Houston, Phoenix, Miami, Atlanta, New York, San Francisco, Los Angeles, San Diego,
    Philadelphia, Detroit, Minneapolis, Nashville, New Orleans, Las Vegas, Salt Lake City, Honolulu, Anchorage,
    Mexico City, Guadalajara, Havana, Bogota, Medellin, Lima, Quito, Santiago, Buenos Aires, Montevideo, Rio de Janeiro,
    Sao Paulo, Recife, Salvador, Caracas, Panama City, Reykjavik, Valletta, Nicosia
""")
COUNTRIES = listed("""
    France, Germany, Spain, Italy, Portugal, Poland, Austria, Sweden, Norway, Finland, Denmark, Ireland, Greece, Turkey,
    Egypt, Morocco, Kenya, Ghana, Nigeria, Japan, China, India, Vietnam, Thailand, Malaysia, Indonesia, Nepal,
    Australia, New Zealand, Canada, Mexico, Brazil, Argentina, Chile, Peru, Colombia, Cuba, Iceland, Croatia, Hungary,
    Romania, Bulgaria, Estonia, Latvia, South Africa, Ethiopia, Jordan, Qatar, South Korea, the United States
""")
FIRST_NAMES = listed("""
    Anna, Ben, Clara, David, Emma, Felix, Grace, Henry, Ida, Jack, Karen, Liam, Maria, Noah, Olivia, Paul, Quinn, Rosa,
    Sam, Tina, Uma, Victor, Wendy, Xavier, Yara, Zoe, Ahmed, Aisha, Alejandro, Amara, Andrei, Anika, Arjun, Astrid, Bao,
    Bianca, Boris, Camila, Carlos, Chen, Chloe, Dario, Deepa, Diego, Dmitri, Elena, Elif, Emil, Erik, Esra, Fatima,
    Fiona, Francesca, Gabriel, Giulia, Gustav, Hannah, Hana, Hassan, Helga, Hiro, Hugo, Ibrahim, Ines, Ingrid, Isaac,
    Ivan, Jamal, Jana, Jin, Joao, Jonas, Julia, Kai, Kamala, Kenji, Kofi, Lars, Laura, Layla, Leon, Lina, Lucas, Luisa,
    Magnus, Malik, Marco, Mateo, Mei, Mia, Milan, Mira, Nadia, Nasser, Nina, Nora, Oleg, Omar, Oscar, Pablo, Pedro,
    Petra, Priya, Rafael, Rahul, Raj, Rania, Rita, Robin, Ruth, Sana, Sara, Sergei, Simon, Sofia, Stefan, Sunita, Sven,
    Tariq, Theo, Thomas, Tomas, Vera, Viktor, Wei, Yan, Yusuf, Zara, Agnes, Albert, Beth, Carol, Dennis, Edith, Frank,
    Gloria, Harold, Irene, James, Kate, Louis, Martha, Nathan, Patrick, Ralph, Susan, Terry, Ursula, Vincent, Walter
""")
LAST_NAMES = listed("""
    Adams, Baker, Carter, Dixon, Evans, Fisher, Green, Hughes, Irwin, Jones, Keller, Lopez, Miller, Novak, Olsen,
    Parker, Quist, Rossi, Silva, Turner, Ueda, Vargas, Weber, Xu, Young, Ziegler, Abbott, Ahmed, Andersen, Bauer,
    Becker, Bianchi, Blake, Borg, Brandt, Cho, Cohen, Costa, Cruz, Dahl, Das, Diaz, Dubois, Eriksen, Farah, Ferrari,
    Fox, Garcia, Gomez, Gray, Gupta, Haas, Hansen, Hill, Hoffman, Horvat, Ito, Ivanov, Jansen, Kang, Khan, Kim, King,
    Klein, Kovacs, Kumar, Lang, Larsen, Laurent, Lee, Lindqvist, Mason, Martin, Meyer, Moreau, Moreno, Murphy, Nakamura,
    Nguyen, Nielsen, Okafor, Ortiz, Osman, Park, Patel, Pereira, Peters, Petrov, Popescu, Rahman, Ramos, Reid, Ricci,
    Romero, Roy, Ryan, Sanders, Santos, Sato, Schmidt, Schulz, Shah, Sharma, Singh, Stone, Suzuki, Tanaka, Taylor,
    Torres, Tran, Vogel, Wagner, Walsh, Wang, Watanabe, White, Winter, Wolf, Wright, Yamada, Yilmaz, Zhang, Zimmer
""")
NOUNS = listed("""
    anchor, apple, arrow, atlas, badge, balloon, banner, barrel, basket, battery, beacon, bench, bicycle, blanket, boat,
    book, bottle, bowl, box, bracelet, branch, bread, bridge, brush, bucket, button, cabin, cable, camera, candle,
    canvas, carpet, castle, ceiling, chain, chair, chart, circle, clock, cloud, coat, coin, column, comet, compass,
    copper, corner, cottage, counter, crate, crystal, cup, curtain, desk, diary, dish, door, dragon, drawer, drum,
    engine, envelope, falcon, feather, fence, field, filter, flag, flower, flute, forest, fork, fountain, frame, garden,
    gate, giraffe, glass, glove, guitar, hammer, harbor, harvest, hat, heart, helmet, hill, hinge, horizon, horse,
    island, jacket, jar, jewel, journal, kettle, key, keyboard, kite, kitchen, ladder, lake, lamp, lantern, leaf, lemon,
    letter, library, lion, machine, magnet, map, marble, market, mask, meadow, metal, mirror, moon, motor, mountain,
    mouse, needle, nest, notebook, number, oak, ocean, office, orange, orchard, oven, owl, package, paddle, page, paint,
    palace, panel, paper, parcel, park, pearl, pencil, pepper, phone, piano, picture, pillow, pilot, planet, plate,
    pocket, poem, pond, portrait, pot, printer, project, puzzle, radio, raft, rainbow, razor, record, report, ribbon,
    ring, river, road, robot, rocket, roof, room, rope, ruler, saddle, sail, salt, school, screen, sensor, shadow,
    shelf, shell, ship, shirt, shoe, shovel, signal, silver, sketch, sofa, song, spark, spoon, square, stage, stamp,
    star, statue, stove, string, suitcase, summer, sword, table, teapot, tent, theater, thread, ticket, tiger, tile,
    toast, tool, tower, toy, tractor, train, tray, tree, trumpet, tunnel, turbine, umbrella, valley, vase, vessel,
    village, violin, wagon, wall, wallet, watch, wheel, whistle, window, winter, wire, wolf, yard, zebra, invoice,
    budget, contract, server, router, schedule, survey, module, backup, account
""")
ADJECTIVES = listed("""
    amber, ancient, black, blue, bold, brave, bright, broken, brown, calm, careful, cheap, clean, clever, cold, cool,
    crisp, curious, daily, dark, deep, dry, early, eager, easy, electric, empty, famous, fast, final, flat, folding,
    fresh, friendly, gentle, giant, golden, grand, gray, green, happy, heavy, hidden, hollow, honest, hot, huge, icy,
    large, late, lazy, light, little, lonely, long, loud, lucky, magic, modern, narrow, new, noisy, odd, old, open,
    orange, pale, perfect, plain, polite, portable, proud, purple, quick, quiet, rapid, rare, red, rich, rough, round,
    royal, rusty, sad, salty, secret, sharp, shiny, short, shy, silent, silver, simple, slow, small, smart, smooth,
    soft, solid, sour, spare, special, square, steep, strange, strong, sunny, sweet, tall, tiny, tough, urgent, vast,
    violet, warm, weekly, wet, white, wide, wild, wireless, wise, wooden, yellow, young
""")
VERBS = listed("""
    check, clean, fix, move, paint, pack, sell, sort, wash, test, draw, carry, count, cover, deliver, collect, repair,
    replace, review, return, print, open, close, order, measure, label, inspect, install, finish, fill, empty, update,
    sign, scan, send, cancel, store, wrap, weigh, polish, trim, build, cut, load, lock, borrow, copy, design, prepare,
    dry, plan, water, rebuild, adjust, assemble, burn, cook, describe, discuss, donate, feed, hang, hide, improve,
    invite, join, keep, lift, merge, photograph, present, publish, record, remove, rent, rename, report, reset, restart,
    save, search, ship, split, stop, study, tighten, tune, verify, visit, warm, write
""")
FOODS = listed("""
    apples, bananas, bread, butter, milk, eggs, rice, pasta, tomatoes, potatoes, onions, garlic, carrots, spinach,
    chicken soup, lasagna, pizza, sushi, ramen, tacos, burritos, curry, fried rice, pancakes, waffles, omelette, salad,
    hummus, falafel, kebab, goulash, risotto, paella, ravioli, gnocchi, lentil soup, pumpkin pie, apple pie, cheesecake,
    brownies, muffins, cucumber, peppers, mushrooms, salmon, tuna, shrimp, tofu, yogurt, cheese, honey, oats, almonds,
    walnuts, blueberries, strawberries, grapes, lemons, oranges, peaches, plums, beans, peas, corn, broccoli,
    cauliflower, zucchini, eggplant, basil, parsley, chili, noodles, dumplings, pho, pad thai, biryani, moussaka,
    quiche, ratatouille, stew, meatballs, burger, fries, coffee, green tea, olive oil, flour, sugar, dark chocolate,
    sunflowers, radishes, beetroot, kale, quinoa, couscous, chickpeas, barley soup, fish pie, banana bread, carrot cake,
    garlic bread, minestrone, gazpacho, tiramisu, crepes, bagels, croissants
""")
ROOMS = listed("""
    living room, kitchen, bedroom, bathroom, hallway, office, basement, attic, garage, nursery, dining room, guest room,
    laundry room, study, workshop, porch, library, playroom
""")
DEVICES = listed("""
    coffee machine, television, fan, heater, air conditioner, dishwasher, washing machine, radio, lamp, oven,
    humidifier, printer, router, projector, sprinkler, doorbell, toaster, electric blanket, aquarium pump, speaker
""")
COLORS = listed("""
    red, green, blue, yellow, orange, purple, pink, white, warm white, turquoise, violet, amber
""")
CURRENCIES = listed("""
    USD, EUR, GBP, JPY, CHF, CAD, AUD, NZD, SEK, NOK, DKK, PLN, CZK, HUF, INR, CNY, KRW, SGD, HKD, THB, MXN, BRL, ZAR,
    TRY, ILS, AED
""")
LANGUAGES = listed("""
    English, French, German, Spanish, Italian, Portuguese, Dutch, Swedish, Norwegian, Danish, Finnish, Polish, Czech,
    Hungarian, Romanian, Greek, Turkish, Arabic, Hebrew, Hindi, Bengali, Urdu, Thai, Vietnamese, Korean, Japanese,
    Chinese, Russian, Ukrainian, Swahili, Latin, Welsh, Catalan
""")
UNITS = listed("""
    meters, feet, inches, kilometers, miles, yards, grams, kilograms, pounds, ounces, liters, gallons, pints, cups,
    celsius, fahrenheit
""")
WEEKDAYS = listed("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = listed("""
    January, February, March, April, May, June, July, August, September, October, November, December
""")
MEDICINES = listed("""
    ibuprofen, aspirin, paracetamol, amoxicillin, metformin, insulin, vitamin C, vitamin D, zinc, iron, melatonin,
    caffeine, glucose, citric acid, salt, codeine, atorvastatin, omeprazole, cetirizine, magnesium, calcium, folic acid,
    iodine, lactose, urea
""")
PLACES = listed("""
    Central Park, the main station, the airport, the town hall, the university, Victoria Square, the old harbor,
    the opera house, the city library, Market Street, the botanical garden, the north gate, the football stadium,
    Union Square, the art museum, the bus terminal, the hospital, the castle, River Mall, the ferry pier
""")
STREETS = listed("Street, Avenue, Road, Lane, Boulevard, Way, Drive, Square, Court, Alley")
BUSINESSES = listed("""
    Kitchen, Bistro, Diner, Grill, Cafe, Garden, Tavern, House, Corner, Bakery, Bar, Works, Motors, Partners
""")
TLDS = listed("com, org, net, io, de, fr, co.uk, edu, info, app")
EXTENSIONS = listed("""
    txt, md, csv, json, py, log, pdf, html, yaml, toml, jpg, png, docx, xml, rs, go, sh, zip
""")
TOPICS = listed("""
    solar energy, black holes, chess openings, the French Revolution, machine learning, coral reefs, electric cars,
    ancient Rome, the stock market, volcanoes, jazz history, football results, space travel, the Silk Road,
    quantum computing, bird migration, whales, the Olympic games, vaccines, earthquakes, wind turbines, the Renaissance,
    photosynthesis, dinosaurs, bread baking, mountain climbing, climate policy, elections, housing prices, robotics,
    beekeeping, tea ceremonies, medieval castles, the Great Wall, glaciers, sleep research, public transport, opera,
    rivers, honey bees, graph theory, the human heart, steam engines, pottery, marathon training, folk tales,
    cheese making, the moon landing, satellites, tropical storms
""")
NUMBER_WORDS = listed("""
    zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen,
    sixteen, seventeen, eighteen, nineteen
""")
