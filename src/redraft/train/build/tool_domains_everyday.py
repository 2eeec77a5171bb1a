"""Hand-written tools of everyday life, in the small language that :mod:`redraft.train.build.tool_grammar` reads.

``@domain group`` opens a domain; domains of one group are never mixed where it would make the right tool ambiguous. A tool is a line
``names :: descriptions``, a line of parameters (``alias/alias!=KIND:description``, ``!`` marks required ones) and request lines:
``-`` an imperative that may get a polite wrapper, ``?`` a sentence used as it stands; ``[...]`` may be left out.
"""

# ruff: noqa: E501  (a tool's parameters stay on one line, as a table row)

TEXT = """
@weather weather
get_weather/weather_forecast/fetch_weather/check_weather :: Get the weather forecast for a city/Look up the weather for a place/Returns the forecast for a location
city/location/place/town!=CITY:Name of the city; date/day=DATE:Day of the forecast; unit/units/temperature_unit=ENUM(celsius,fahrenheit,kelvin):Temperature unit
- get the weather in {city}[ for {date}][ in {unit}]
- check the forecast for {city}[ on {date}]
? What is the weather like in {city}[ on {date}]?
? Will it rain in {city}[ on {date}]?
? How warm is it in {city}[, in {unit}]?
get_air_quality/air_quality_index/check_air :: Get the air quality index of a city/Report air pollution for a location
city/location/area!=CITY:City to check; pollutant=ENUM(pm25,pm10,ozone,no2):Pollutant to report
- check the air quality in {city}[ for {pollutant}]
? How clean is the air in {city}?
? What is the [{pollutant} ]pollution level in {city}?
get_sun_times/sunrise_sunset/sun_schedule :: Get sunrise and sunset times/Find when the sun rises and sets
city/location/place!=CITY:Where; date/day=DATE:Which day
? When does the sun rise in {city}[ on {date}]?
? What time is sunset in {city}[ on {date}]?
- tell me the sunrise and sunset times for {city}[ on {date}]
get_forecast_days/multi_day_forecast/extended_forecast :: Get a forecast for several days/Weather outlook for the coming days
city/location!=CITY:City name; days/num_days/day_count!=INT(2,14):Number of days to forecast
- show the forecast for the next {days} days in {city}
- give me a {days}-day weather outlook for {city}
? What will the weather in {city} be over the next {days} days?
set_weather_alert/create_weather_alert/add_storm_alert :: Create an alert for severe weather/Warn the user about bad weather
city/location!=CITY:City to watch; event/condition!=ENUM(storm,snow,frost,heat,flood,wind):Kind of weather; enabled/active=BOOL:Whether the alert is active
- warn me about {event} in {city}
- set up a {event} alert for {city}[ {enabled:and switch it on|but leave it off}]
get_tides/tide_table/tide_times :: Get tide times for a coast/Look up high and low tide
harbor/station/port!=CITY:Harbour or station; date/day=DATE:Date of the tides
? When is high tide in {harbor}[ on {date}]?
- look up the tide times for {harbor}[ on {date}]

@music music
play_song/play_music/play_track/start_song :: Play a song/Start playing a track/Plays a song by title
title/song/track/song_name!=TITLE:Title of the song; artist/performer/singer=PERSON:Who performs it; shuffle=BOOL:Shuffle the queue
- play {title}[ by {artist}]
- put on the song {title}[ by {artist}][ {shuffle:with shuffle on|without shuffle}]
? I want to hear {title}[ by {artist}].
create_playlist/new_playlist/make_playlist :: Create a new playlist/Make an empty playlist
name/title/playlist_name!=TITLE:Name of the playlist; songs/tracks=LIST(TITLE):Songs to add; public/is_public=BOOL:Whether others can see it
- create a playlist called {name}[ with the songs {songs}]
- make a new [{public:public|private} ]playlist named {name}
set_volume/change_volume/adjust_volume :: Set the volume/Change how loud the music is
level/volume/percent!=INT(0,100):Volume from 0 to 100; device/speaker=ROOM:Which speaker
- set the volume to {level}[ in the {device}]
- turn the music to {level} percent[ in the {device}]
- change the volume[ of the {device} speaker] to {level}
find_concerts/search_concerts/list_gigs :: Find concerts near a place/Search live music events
city/location!=CITY:Where; genre/style=ENUM(jazz,rock,classical,folk,hip_hop,techno):Kind of music; date/day=DATE:When
- find [{genre} ]concerts in {city}[ on {date}]
? Are there any [{genre} ]gigs in {city}[ on {date}]?
get_lyrics/find_lyrics/song_lyrics :: Get the lyrics of a song/Show the words of a song
title/song!=TITLE:Song title; artist/band=PERSON:Performer
- show me the lyrics of {title}[ by {artist}]
? What are the words to {title}[ by {artist}]?
stop_music/pause_music/stop_playback :: Stop the music/Pause what is playing
()
- stop the music
- pause the song
? It is too loud, turn the music off.
add_to_queue/queue_song/enqueue :: Add a song to the queue/Queue a track to play next
title/song/track!=TITLE:Song to add; position=INT(1,20):Place in the queue
- add {title} to the queue[ at position {position}]
- queue {title}[ as number {position}]

@maps travel
get_directions/find_route/navigate/plan_route :: Get directions between two places/Find the route from A to B
origin/start/from_place!=PLACE:Starting point; destination/end/to_place!=PLACE:Where to go; mode/travel_mode/by=ENUM(walking,driving,cycling,transit):Means of transport; avoid_tolls=BOOL:Avoid toll roads
- get directions from {origin} to {destination}[ by {mode}]
- find the [{mode} ]route from {origin} to {destination}[ {avoid_tolls:avoiding tolls|with toll roads allowed}]
? How do I get from {origin} to {destination}[ by {mode}]?
find_nearby/search_nearby/places_nearby :: Find places near a location/Search for points of interest
category/type/kind!=ENUM(pharmacy,restaurant,gas_station,supermarket,bank,hospital,parking,cafe):Kind of place; location/near/address!=PLACE:Where to search; radius/radius_km/distance=NUM(0.5,20):Search radius in kilometres
- find a {category} near {location}[ within {radius} km]
- search for a {category} close to {location}
? Is there a {category} near {location}[ within {radius} kilometers]?
get_distance/distance_between/measure_distance :: Get the distance between two cities/Compute how far two places are apart
origin/from_city/city_a!=CITY:First place; destination/to_city/city_b!=CITY:Second place; unit/units=ENUM(km,miles):Unit of length
? How far is it from {origin} to {destination}[ in {unit}]?
- calculate the distance between {origin} and {destination}[ in {unit}]
geocode/geocode_address/locate_address :: Convert an address to coordinates/Find the latitude and longitude of an address
address/street_address!=ADDRESS:Full street address
- find the coordinates of {address}
? Where exactly is {address}?
- locate {address} on the map
save_place/bookmark_place/add_favorite_place :: Save a place to favourites/Bookmark a location on the map
name/label!=PLACE:Name of the place; note/comment=TEXT:Note to keep with it
- save {name} as a favorite place[ with the note {note}]
- bookmark {name}[ and note {note}]
get_traffic/traffic_report/check_traffic :: Get current traffic on a road/Report traffic conditions
road/street/route!=STREET:Road name; city=CITY:City the road is in
? How is the traffic on {road}[ in {city}]?
- check the traffic on {road}[ in {city}]

@shopping shop
search_products/find_products/product_search :: Search for products in the shop/Find items for sale
query/keywords/search_term!=PRODUCT:What to search for; max_price/price_limit/budget=MONEY:Highest price; sort_by/order=ENUM(price,rating,newest,popularity):Sort order
- search for {query}[ under {max_price}][ sorted by {sort_by}]
- find me a {query}[ for less than {max_price}]
? Do you have {query}[ below {max_price}]?
add_to_cart/put_in_cart/cart_add :: Add a product to the cart/Put an item in the shopping cart
product/item/product_name!=PRODUCT:Product to add; quantity/count/amount=INT(1,20):How many
- add {product} to my cart
- put {quantity} of the {product} in my shopping cart
- add {quantity} pieces of {product} to the cart
track_order/order_status/where_is_order :: Track an order/Get the delivery status of an order
order_id/order_number/order!=ID:Order number
- track order {order_id}
? Where is my order {order_id}?
? What is the status of order number {order_id}?
cancel_order/void_order/order_cancel :: Cancel an order/Cancel a purchase that was not shipped
order_id/order_number!=ID:Order number; reason=TEXT:Why it is cancelled
- cancel order {order_id}[ because {reason}]
- cancel my order {order_id}[, the reason is {reason}]
apply_coupon/use_coupon/redeem_code :: Apply a coupon code/Redeem a discount code
code/coupon/coupon_code!=CODEWORD:Coupon code
- apply the coupon {code}
- use the discount code {code} on my order
write_review/post_review/add_review :: Write a product review/Post a rating for a product
product/item!=PRODUCT:Product reviewed; rating/stars/score!=INT(1,5):Stars from 1 to 5; text/comment/body=TEXT:Review text
- give the {product} {rating} stars[ and write {text}]
- review the {product} with {rating} stars[ and the comment {text}]
return_item/start_return/request_return :: Start the return of an item/Request a refund for a product
order_id/order_number!=ID:Order number; product/item!=PRODUCT:Item to send back; refund=BOOL:Refund instead of exchange
- return the {product} from order {order_id}[ {refund:for a refund|for an exchange}]
? I want to send back the {product} of order {order_id}.

@food shop
find_recipe/search_recipes/get_recipe :: Find a recipe/Search recipes by dish
dish/query/meal!=FOOD:Dish to cook; servings/portions/people=INT(1,12):Number of servings; diet=ENUM(vegan,vegetarian,gluten_free,keto,halal):Dietary restriction
- find a [{diet} ]recipe for {dish}[ for {servings} people]
? How do I cook {dish}[ for {servings} people]?
- look up how to make {dish}
order_food/order_meal/place_food_order :: Order food for delivery/Order a dish from a restaurant
restaurant/from_restaurant!=BUSINESS:Restaurant name; dish/item/meal!=FOOD:What to order; quantity/count=INT(1,8):How many portions; address/deliver_to=ADDRESS:Delivery address
- order {dish} from {restaurant}[ to {address}]
- order {quantity} portions of {dish} from {restaurant}[ and deliver them to {address}]
? I'd like {dish} from {restaurant}, please.
book_table/reserve_table/make_reservation :: Book a table at a restaurant/Reserve a table
restaurant/venue!=BUSINESS:Restaurant; party_size/guests/people!=INT(1,14):Number of guests; date/day=DATE:Date; time/at=TIME:Time of arrival
- book a table for {party_size} at {restaurant}[ on {date}][ at {time}]
- reserve a table at {restaurant} for {party_size} people[ on {date}][ at {time}]
? We are {party_size} people and want to eat at {restaurant}[ on {date}].
get_calories/nutrition_info/calorie_lookup :: Get the calories of a food/Look up nutrition facts
food/item/ingredient!=FOOD:Food item; grams/weight/weight_grams=INT(10,900):Weight in grams
? How many calories are in {food}?
? How many calories do {grams} grams of {food} have?
- look up the nutrition facts of {food}[ for {grams} g]
add_to_shopping_list/add_grocery/shopping_list_add :: Add items to the shopping list/Put groceries on the list
items/groceries/products!=LIST(FOOD):Items to add
- add {items} to my shopping list
- put {items} on the grocery list
? We are out of {items}, add them to the list.
suggest_wine/pair_wine/recommend_wine :: Suggest a wine for a dish/Recommend a wine pairing
dish/food!=FOOD:Dish; color/type=ENUM(red,white,rose,sparkling):Colour of the wine
? Which [{color} ]wine goes with {dish}?
- suggest a [{color} ]wine for {dish}

@travel travel
search_flights/find_flights/flight_search :: Search for flights/Find flights between two cities
origin/from_city/departure_city!=CITY:Departure city; destination/to_city/arrival_city!=CITY:Arrival city; date/departure_date/day=DATE:Day of travel; cabin/travel_class=ENUM(economy,business,first):Cabin class; passengers/adults=INT(1,6):Number of travellers
- find [{cabin} class ]flights from {origin} to {destination}[ on {date}]
- search for a flight from {origin} to {destination}[ on {date}][ for {passengers} people]
? I need to fly from {origin} to {destination}[ on {date}].
? Are there flights to {destination} from {origin}[ on {date}]?
book_hotel/reserve_hotel/hotel_booking :: Book a hotel room/Reserve a room in a hotel
city/location/destination!=CITY:City; check_in/checkin/arrival!=DATE:Arrival date; nights/num_nights/length_of_stay!=INT(1,21):Number of nights; stars/min_stars=INT(2,5):Minimum stars; breakfast=BOOL:Include breakfast
- book a hotel in {city} from {check_in} for {nights} nights[ with at least {stars} stars][ {breakfast:including breakfast|without breakfast}]
- reserve a [{stars}-star ]hotel room in {city} for {nights} nights starting {check_in}
rent_car/book_rental_car/car_rental :: Rent a car/Book a rental car
city/pickup_location/location!=CITY:Pick-up place; days/num_days!=INT(1,28):Rental days; car_type/category=ENUM(compact,suv,convertible,van,electric):Kind of car
- rent a [{car_type} ]car in {city} for {days} days
? I need a [{car_type} ]rental car for {days} days in {city}.
train_schedule/find_trains/get_trains :: Get train connections/Look up the train timetable
origin/from_station/departure!=CITY:Departure station; destination/to_station/arrival!=CITY:Arrival station; time/departure_time/after=TIME:Earliest departure
? When does the next train from {origin} to {destination} leave[ after {time}]?
- find trains from {origin} to {destination}[ after {time}]
check_visa/visa_requirements/need_visa :: Check visa requirements/Find out whether a visa is needed
nationality/citizenship/passport_country!=COUNTRY:Country of the passport; destination/country/target_country!=COUNTRY:Country to visit
? Do citizens of {nationality} need a visa for {destination}?
- check whether someone from {nationality} needs a visa to visit {destination}
flight_status/check_flight/track_flight :: Get the status of a flight/Check whether a flight is on time
flight_number/flight/flight_code!=FLIGHT:Flight number; date/day=DATE:Day of the flight
? Is flight {flight_number} on time[ on {date}]?
- check the status of flight {flight_number}[ on {date}]
- track flight {flight_number}
find_attractions/list_sights/things_to_do :: Find sights in a city/List tourist attractions
city/destination!=CITY:City; category/kind=ENUM(museums,parks,churches,markets,beaches):Kind of sight; limit/max_results=INT(3,25):How many
? What can I visit in {city}?
- list {limit} {category} in {city}
- show me [the best ]{category} in {city}
call_taxi/order_taxi/book_ride :: Order a taxi/Book a ride
pickup/from_address/pickup_address!=ADDRESS:Where to be picked up; dropoff/destination/to_address=PLACE:Where to go; time/pickup_time=TIME:When
- call a taxi to {pickup}[ at {time}]
- book a ride from {pickup} to {dropoff}[ at {time}]

@home home
set_light/control_light/set_brightness/dim_light :: Set the brightness of a light/Dim the lights in a room
room/location/area!=ROOM:Room; brightness/level/percent!=INT(0,100):Brightness in percent; color/colour=COLOR:Light colour
- set the lights in the {room} to {brightness} percent[ and make them {color}]
- dim the {room} light to {brightness}[ in {color}]
switch_device/toggle_device/turn_device/power_device :: Switch a device on or off/Turn an appliance on or off
device/appliance/device_name!=DEVICE:Name of the device; on/state/power!=BOOL:True to switch it on; room=ROOM:Room it stands in
- {on:turn on|turn off} the {device}[ in the {room}]
- switch the {device} {on:on|off}[ in the {room}]
set_thermostat/set_temperature/heat_room :: Set the target temperature/Control the thermostat
temperature/degrees/target!=NUM(14,28):Temperature in degrees; room/zone=ROOM:Room to heat; mode=ENUM(heat,cool,auto,eco):Operating mode
- set the temperature[ in the {room}] to {temperature} degrees[ in {mode} mode]
- heat the {room} to {temperature} degrees
- set the thermostat to {temperature}[ and {mode} mode]
lock_door/set_lock/door_lock :: Lock or unlock a door/Control a smart lock
door/lock_name!=ENUM(front_door,back_door,garage,basement,garden_gate):Which door; locked/lock!=BOOL:True to lock
- {locked:lock|unlock} the {door}
? Please make sure the {door} is {locked:locked|unlocked}.
start_vacuum/vacuum_room/clean_room :: Start the robot vacuum/Clean a room with the robot
room/area!=ROOM:Room to clean; mode/power=ENUM(quiet,standard,turbo):Suction power; repeat/times=INT(1,3):How often
- vacuum the {room}[ in {mode} mode]
- start the robot in the {room}[ and clean it {repeat} times]
set_scene/activate_scene/run_scene :: Activate a lighting scene/Run a home scene
scene/name/scene_name!=TITLE:Name of the scene; room=ROOM:Room
- activate the scene {scene}[ in the {room}]
- start {scene} mode[ in the {room}]
move_blinds/set_blinds/set_shutter :: Move the blinds/Set how far the blinds are open
room/window!=ROOM:Room; position/percent_open/opening!=INT(0,100):Opening in percent
- open the blinds in the {room} to {position} percent
- set the {room} blinds to {position}
lights_off/all_lights_off/switch_off_lights :: Switch all lights off/Turn every light in the house off
()
- turn off all the lights
? I am leaving, please switch off every light.
start_camera/record_camera/view_camera :: Start a security camera/Record video with a camera
camera/camera_name!=ENUM(driveway,garden,entrance,garage,balcony):Which camera; seconds/duration/length=INT(5,600):Length in seconds; upload=BOOL:Upload to the cloud
- record the {camera} camera[ for {seconds} seconds][ {upload:and upload it|but do not upload it}]
- start the camera in the {camera}[ for {seconds} seconds]

@health health
log_workout/record_workout/add_exercise :: Log a workout/Record an exercise session
activity/exercise/sport!=ENUM(running,swimming,cycling,yoga,rowing,hiking,boxing):Kind of exercise; minutes/duration/duration_minutes!=INT(5,180):Length in minutes; calories/kcal=INT(50,1200):Calories burned
- log {minutes} minutes of {activity}[ with {calories} calories]
? I did {minutes} minutes of {activity} today[ and burned {calories} calories].
log_weight/record_weight/add_weight :: Record body weight/Log the user's weight
kilograms/weight/weight_kg!=NUM(45,120):Weight in kilograms; date/day=DATE:Day of the measurement
- record my weight as {kilograms} kilograms[ on {date}]
? I weigh {kilograms} kg[ on {date}].
find_doctor/search_doctor/doctor_search :: Find a doctor/Search a medical specialist
specialty/field/speciality!=ENUM(dentist,cardiologist,dermatologist,pediatrician,optician,surgeon):Medical field; city/location!=CITY:City; insurance=BUSINESS:Insurance company
- find a {specialty} in {city}[ who accepts {insurance}]
? I need a {specialty} in {city}.
book_appointment/doctor_appointment/schedule_visit :: Book a doctor's appointment/Schedule a medical visit
doctor/physician/doctor_name!=PERSON:Name of the doctor; date/day!=DATE:Day; time/at=TIME:Time; reason/complaint=TEXT:Reason of the visit
- book an appointment with Dr. {doctor} on {date}[ at {time}][, reason: {reason}]
- schedule a visit to Dr. {doctor} for {date}[ at {time}]
set_medication_reminder/add_medication/medication_reminder :: Set a reminder for a medicine/Remind the user to take pills
medicine/drug/medication!=MEDICINE:Name of the medicine; time/at!=TIME:Time of day; dose_mg/dose/milligrams=INT(5,800):Dose in milligrams
- remind me to take {medicine} at {time}[, {dose_mg} mg]
- set a medication reminder for {dose_mg} mg of {medicine} at {time}
get_step_count/steps_today/read_steps :: Get the number of steps walked today/Read the step counter
()
? How many steps have I walked today?
- show my step count
log_water/record_water/drink_water :: Log how much water was drunk/Record water intake
milliliters/amount/ml!=INT(100,1500):Amount in millilitres
- log {milliliters} ml of water
? I just drank {milliliters} milliliters of water.
compute_bmi/calculate_bmi/bmi :: Compute the body mass index/Calculate the BMI
height/height_cm!=INT(140,205):Height in centimetres; weight/weight_kg!=INT(42,130):Weight in kilograms
? What is the BMI of someone {height} cm tall who weighs {weight} kg?
- calculate the BMI for {weight} kilograms and {height} centimeters

@money money
convert_currency/exchange_money/currency_convert :: Convert an amount between currencies/Exchange money from one currency to another
amount/value/sum!=NUM(1,9000):Amount of money; from_currency/source/from!=CURRENCY:Currency to convert from; to_currency/target/to!=CURRENCY:Currency to convert to
- convert {amount} {from_currency} to {to_currency}
? How much is {amount} {from_currency} in {to_currency}?
? What do I get in {to_currency} for {amount} {from_currency}?
get_stock_price/stock_quote/share_price :: Get the price of a stock/Look up a share price
symbol/ticker/stock!=TICKER:Ticker symbol; date/day=DATE:Trading day
? What is the stock price of {symbol}[ on {date}]?
- get the quote for {symbol}[ on {date}]
- look up the share price of {symbol}
transfer_money/send_money/make_payment/bank_transfer :: Transfer money to someone/Send a payment
recipient/to/payee!=PERSON:Who gets the money; amount/sum!=NUM(1,5000):Amount; currency=CURRENCY:Currency; note/reference/memo=TEXT:Payment reference
- send {amount} {currency} to {recipient}[ with the note {note}]
- transfer {amount} {currency} to {recipient}[ for {note}]
get_balance/account_balance/check_balance :: Get the balance of an account/Check how much money is in an account
account/account_name/account_type!=ENUM(checking,savings,credit_card,business,joint):Which account
? What is the balance of my {account} account?
? How much money is in the {account} account?
- check my {account} balance
calculate_loan/loan_payment/mortgage_payment :: Compute the monthly payment of a loan/Loan calculator
principal/amount/loan_amount!=INT(1000,600000):Amount borrowed; rate/interest_rate/annual_rate!=NUM(0.5,12):Interest rate in percent; years/term/term_years!=INT(1,35):Years
- calculate the payment for a loan of {principal} at {rate} percent over {years} years
? What is the monthly payment on {principal} at {rate}% for {years} years?
add_expense/log_expense/record_expense :: Record an expense/Add a spending to the budget
amount/cost/price!=MONEY:Amount spent; category/type!=ENUM(groceries,rent,transport,clothes,leisure,gifts):Category; note/description=TEXT:What it was
- add an expense of {amount} for {category}[ with the note {note}]
? I spent {amount} on {category}.
buy_shares/buy_stock/place_buy_order :: Buy shares of a company/Place a buy order
symbol/ticker!=TICKER:Ticker symbol; shares/quantity/units!=INT(1,500):Number of shares; limit_price/limit=MONEY:Highest price per share
- buy {shares} shares of {symbol}[ at no more than {limit_price}]
- place an order for {shares} {symbol} shares[ with a limit of {limit_price}]
calculate_tip/compute_tip/tip_calculator :: Calculate the tip on a bill/Compute a tip
bill/bill_amount/total!=MONEY:Amount of the bill; percent/tip_percent!=INT(5,30):Tip in percent; people/split=INT(2,9):People sharing the bill
- calculate a {percent} percent tip on {bill}[ split between {people} people]
? How much is a {percent}% tip on a bill of {bill}?
"""
