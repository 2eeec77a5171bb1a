"""Tools that appear in evaluation only: whole domains that no training document uses.

Same language as :mod:`redraft.train.build.tool_grammar`; ``tests/train/test_tool_data.py`` checks that no name of these is a training name.
"""

# ruff: noqa: E501  (a tool's parameters stay on one line, as a table row)

TEXT = """
@library library
borrow_book/checkout_book :: Borrow a book from the library/Check out a book
title/book_title!=TITLE:Title of the book; card_number/member_id!=ID:Library card; weeks=INT(1,8):Loan period in weeks
- borrow {title} with card {card_number}[ for {weeks} weeks]
- check out the book {title} on the library card {card_number}[ for {weeks} weeks]
search_catalog/find_book :: Search the library catalogue/Find books by author
author/writer!=PERSON:Author; genre=ENUM(novel,poetry,biography,history,science):Genre; available=BOOL:Only books on the shelf
- find [{genre} ]books by {author}[ {available:that are available|even if they are lent out}]
? Does the library have books by {author}?
renew_loan/extend_loan :: Renew a loan/Extend the loan of a book
loan_id/loan!=ID:Loan number; days/extra_days!=INT(3,40):Days to add
- renew loan {loan_id} by {days} days
? Can I keep loan {loan_id} for {days} more days?
reserve_study_room/book_study_room :: Reserve a study room/Book a room in the library
room_number/room!=INT(1,60):Room; date/day!=DATE:Date; hours=INT(1,6):Length in hours
- reserve study room {room_number} on {date}[ for {hours} hours]
? Is it possible to have study room {room_number} on {date}?

@garden garden
water_plants/start_irrigation :: Water a garden zone/Start the irrigation
zone/bed!=ENUM(roses,vegetables,lawn,greenhouse,hedge):Zone; liters/volume!=INT(2,90):Water in litres; night_only=BOOL:Wait until night
- water the {zone} with {liters} liters[ {night_only:but only at night|right away}]
- give the {zone} {liters} liters of water
plant_seed/sow_seeds :: Sow seeds in the garden/Plant something
plant/seed!=FOOD:What to plant; row/row_number!=INT(1,24):Row; depth_cm/depth=NUM(0.5,9):Depth in centimetres
- plant {plant} in row {row}[ at a depth of {depth_cm} cm]
- sow {plant} in row number {row}[, {depth_cm} centimeters deep]
mow_lawn/start_mower :: Mow the lawn/Start the robot mower
height_mm/cut_height!=INT(15,80):Cutting height in millimetres; start_time/begin=TIME:When to begin
- mow the lawn at {height_mm} mm[, starting at {start_time}]
? The grass should be cut to {height_mm} millimeters[ at {start_time}].
identify_plant/plant_lookup :: Identify a plant from a photo/Recognise a plant
photo/image_path!=PATH:Photo of the plant; top_k/candidates=INT(1,9):Number of guesses
- identify the plant in {photo}[ and give {top_k} guesses]
? Which plant is shown in {photo}?

@school school
enroll_student/register_student :: Enrol a student in a course/Register someone for a class
student/student_name!=PERSON:Student; course/course_title!=TITLE:Course; semester/term=ENUM(spring,summer,autumn,winter):Semester
- enroll {student} in {course}[ for the {semester} semester]
- register {student} for the course {course}[ in {semester}]
record_grade/submit_grade :: Record a grade/Store the result of an exam
student/pupil!=PERSON:Student; subject/course!=ENUM(algebra,chemistry,biology,geography,latin,art):Subject; points/score!=NUM(1,100):Points reached
- record {points} points for {student} in {subject}
? {student} got {points} points in {subject}, please store that.
create_quiz/generate_quiz :: Create a quiz/Generate quiz questions
topic/theme!=TOPIC:Topic; questions/num_questions!=INT(3,40):Number of questions; difficulty/level=ENUM(easy,intermediate,advanced):Difficulty
- create [an {difficulty} ]quiz about {topic} with {questions} questions
- make {questions} quiz questions on {topic}
assign_homework/give_homework :: Assign homework to a class/Give a class something to do at home
class_name/group!=SLUG:Class; task/assignment!=TASK:What to do; due_date/deadline=DATE:Due date
- give the class {class_name} the homework to {task}[ until {due_date}]
- assign homework to {class_name}: {task}[, due {due_date}]

@fleet fleet
dispatch_truck/send_truck :: Send a truck to a customer/Dispatch a vehicle
vehicle_id/truck!=ID:Vehicle; address/destination!=ADDRESS:Where to; pallets/load=INT(1,33):Number of pallets
- send truck {vehicle_id} to {address}[ with {pallets} pallets]
- dispatch {vehicle_id} to {address}
log_refuel/record_fuel :: Log a refuelling/Record fuel bought for a vehicle
vehicle_id/vehicle!=ID:Vehicle; liters/fuel_liters!=NUM(5,600):Litres; cost/price=MONEY:Price paid
- log {liters} liters of fuel for {vehicle_id}[ at {cost}]
? Vehicle {vehicle_id} was filled up with {liters} liters[ for {cost}].
schedule_inspection/plan_inspection :: Schedule a vehicle inspection/Plan the service of a vehicle
vehicle_id/vehicle!=ID:Vehicle; date/inspection_date!=DATE:Date; workshop/garage=BUSINESS:Workshop
- schedule an inspection of {vehicle_id} on {date}[ at {workshop}]
- have vehicle {vehicle_id} inspected on {date}[ by {workshop}]
locate_vehicle/vehicle_position :: Find the position of a vehicle/Locate a vehicle by GPS
vehicle_id/unit!=ID:Vehicle; history_hours/hours=INT(1,48):Hours of history to include
? Where is vehicle {vehicle_id} now?
- locate the vehicle {vehicle_id}[ and show the last {history_hours} hours]

@museum museum
buy_ticket/purchase_ticket :: Buy museum tickets/Purchase tickets for an exhibition
exhibition/show!=TITLE:Exhibition; visitors/tickets!=INT(1,12):Number of visitors; date/visit_date=DATE:Day of the visit; reduced=BOOL:Reduced price
- buy {visitors} tickets for {exhibition}[ on {date}][ {reduced:at the reduced price|at the full price}]
- get tickets for {visitors} visitors to the exhibition {exhibition}[ on {date}]
artwork_info/describe_artwork :: Get information about a work of art/Describe a painting
artwork/work!=TITLE:Name of the work; artist/painter=PERSON:Artist; language=LANGUAGE:Language of the text
- tell me about the painting {artwork}[ by {artist}][ in {language}]
? What do we know about the artwork {artwork}[ by {artist}]?
book_guide/reserve_guide :: Book a guided tour/Reserve a museum guide
language/tour_language!=LANGUAGE:Language of the tour; people/group_size!=INT(2,30):Group size; time/start=TIME:Start
- book a guided tour in {language} for {people} people[ at {time}]
? We would like a {language} tour for a group of {people}[ at {time}].
donate/make_donation :: Donate money to the museum/Make a donation
amount/sum!=MONEY:Amount; donor/donor_name=PERSON:Who gives; anonymous=BOOL:Hide the name
- donate {amount}[ in the name of {donor}][ {anonymous:anonymously|with the name shown}]
? I want to give the museum {amount}.

@lab lab
heat_sample/run_heater :: Heat a sample/Heat a laboratory sample
sample_id/sample!=ID:Sample; celsius/target_temp!=NUM(20,400):Temperature in Celsius; seconds/hold_time=INT(10,900):Time to hold it
- heat sample {sample_id} to {celsius} degrees[ for {seconds} seconds]
- bring {sample_id} to {celsius} °C[ and hold it for {seconds} seconds]
mix_solution/prepare_solution :: Mix a solution/Prepare a chemical solution
solvent/liquid!=ENUM(water,ethanol,acetone,methanol):Solvent; solute/substance!=MEDICINE:Substance to dissolve; molarity/concentration!=NUM(0.1,6):Concentration in mol per litre
- mix {solute} in {solvent} at a concentration of {molarity}
- prepare a {molarity} molar solution of {solute} in {solvent}
start_centrifuge/spin_sample :: Start the centrifuge/Spin a rack of samples
rpm/speed!=INT(500,15000):Turns per minute; minutes/run_minutes!=INT(1,60):Minutes; samples/tubes=LIST(ID):Samples to spin
- spin [the samples {samples} ]at {rpm} rpm for {minutes} minutes
- start the centrifuge for {minutes} minutes at {rpm} rpm[ with {samples}]
log_observation/add_observation :: Log an observation/Add an entry to the lab book
experiment/experiment_name!=SLUG:Experiment; note/remark!=TEXT:What was seen; photo=PATH:Picture to attach
- log for experiment {experiment}: {note}[, with the photo {photo}]
- add the observation {note} to {experiment}[ and attach {photo}]
"""
