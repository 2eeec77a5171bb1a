"""A second set of tools for evaluation, written after version 6 of the embedded model had been trained.

Same language as :mod:`redraft.train.build.tool_grammar`. Lessons from mistakes on the first set
(:mod:`redraft.train.build.tool_domains_heldout`) went into the training data; mistakes on these did not, and should
not.
"""

# ruff: noqa: E501  (a tool's parameters stay on one line, as a table row)

TEXT = """
@zoo zoo
feed_animal/give_food :: Feed an animal/Give food to an animal
animal/species!=ENUM(giraffe,penguin,otter,lemur,camel):Animal; food/feed!=FOOD:Food; kilos/portion=NUM(0.5,40):Kilograms
- feed the {animal} with {food}[, {kilos} kilos of it]
? The {animal} is hungry, give it {food}[ ({kilos} kg)].
adopt_animal/become_sponsor :: Become the sponsor of an animal/Adopt an animal
animal_name/name!=WORD:Name of the animal; sponsor/donor!=PERSON:Sponsor; yearly/amount=MONEY:Yearly amount
- register {sponsor} as the sponsor of {animal_name}[ with {yearly} a year]
? {sponsor} wants to adopt {animal_name}[ for {yearly}].
close_enclosure/shut_enclosure :: Close an enclosure to visitors/Shut an enclosure
enclosure/house!=INT(1,80):Enclosure; reason/why!=TEXT:Reason; until/reopening=DATE:Last day
- close enclosure {enclosure} because {reason}[, until {until}]
? Nobody may visit house {enclosure}[ until {until}]: {reason}

@gym gym
book_class/reserve_class :: Book a fitness class/Reserve a place in a class
class_type/course!=ENUM(yoga,pilates,spinning,boxing):Class; member/member_id!=ID:Member; day/weekday=WEEKDAY:Day
- put member {member} into the {class_type} class[ on {day}]
? Is there room for {member} in {class_type}[ this {day}]?
judge_trainer/rate_coach :: Rate a trainer/Leave stars for a coach
trainer/coach!=PERSON:Trainer; stars/points!=INT(1,10):Stars; comment/words=TEXT:Comment
- leave {trainer} {stars} stars[ and write {comment}]
? {trainer} deserves {stars} stars[: {comment}]
assign_locker/give_locker :: Assign a locker/Give a member a locker
locker/locker_number!=INT(1,400):Locker; person/member_name!=PERSON:Member
- give {person} locker {locker}
? Locker {locker} belongs to {person} from now on.
freeze_membership/pause_membership :: Pause a membership/Freeze a membership
membership/contract!=ID:Membership; from_date/start!=DATE:First day; weeks/length_weeks=INT(1,26):Weeks
- pause membership {membership} from {from_date} on[ for {weeks} weeks]
? Could membership {membership} rest[ for {weeks} weeks], beginning {from_date}?

@theatre theatre
cast_role/assign_role :: Give a role to an actor/Cast a role
role/character!=PERSON:Role; actor/player!=PERSON:Actor; play=TITLE:Play
- let {actor} play {role}[ in {play}]
? The role of {role} goes to {actor}[ in {play}].
reserve_seats/hold_seats :: Reserve seats/Hold seats for a performance
performance/show!=TITLE:Performance; seats/count!=INT(1,14):Number of seats; balcony=BOOL:On the balcony; row=INT(1,30):Row
- hold {seats} seats for {performance}[ in row {row}][ {balcony:on the balcony|not on the balcony}]
? We are {seats} people and want to see {performance}[, {balcony:upstairs on the balcony|but not from the balcony}].
dim_lights/set_stage_lights :: Set the stage lights/Dim the lights
percent/brightness!=INT(1,100):Brightness in percent; color/gel=COLOR:Colour; fade_seconds/fade=INT(1,60):Seconds of fading
- dim the stage lights to {percent} percent[ in {color}][ over {fade_seconds} seconds]
? Lights at {percent} %[, {color}], please[, fading for {fade_seconds} seconds].

@farm farm
milk_yield/record_milk :: Record the milk of a cow/Store a milk yield
cow/cow_tag!=ID:Cow; litres/volume!=NUM(2,60):Litres; time/milking=TIME:Time of milking
- record {litres} litres of milk from cow {cow}[ at {time}]
? Cow {cow} gave {litres} litres[ at {time}].
rent_field/lease_field :: Lease a field/Rent out a field
field/plot!=SLUG:Field; tenant/farmer!=PERSON:Tenant; hectares/area=NUM(0.5,90):Hectares; price/rent=MONEY:Rent
- lease field {field} to {tenant}[, all {hectares} hectares of it][ for {price}]
? {tenant} rents {field} from us[ for {price}].
order_seed/buy_seed :: Order seed/Buy seed
crop/kind!=ENUM(barley,wheat,maize,clover,flax):Crop; sacks/bags!=INT(1,90):Sacks; supplier/vendor=BUSINESS:Supplier
- order {sacks} sacks of {crop}[ from {supplier}]
? We need {crop}, {sacks} sacks[, best from {supplier}].
start_tractor/dispatch_tractor :: Send out a tractor/Start a tractor
tractor/machine!=ID:Tractor; job/task!=ENUM(ploughing,mowing,spraying,hauling):Work; field=SLUG:Field
- send tractor {tractor} out for {job}[ on {field}]
? Tractor {tractor} should begin {job}[ on the field {field}].
"""
