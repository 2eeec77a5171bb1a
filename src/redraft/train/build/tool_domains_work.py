"""Hand-written tools of offices, files and machines, in the language of :mod:`redraft.train.build.tool_grammar`."""

# ruff: noqa: E501  (a tool's parameters stay on one line, as a table row)

TEXT = """
@email mail
send_email/email_send/compose_email/write_email :: Send an email/Compose and send a message by email
to/recipient/address!=EMAIL:Recipient address; subject/title!=TITLE:Subject line; body/text/message=TEXT:Body of the message; cc=LIST(EMAIL):Copies
- send an email to {to} with the subject {subject}[ and the text {body}]
- email {to} about {subject}[, saying {body}]
- write a mail to {to}, subject {subject}[, body {body}][, cc {cc}]
search_email/find_email/search_inbox :: Search emails/Find messages in the inbox
query/keywords/text!=TITLE:Words to look for; sender/from=PERSON:Who sent it; unread_only/unread=BOOL:Only unread messages
- search my mails for {query}[ from {sender}]
- find [{unread_only:unread|read} ]emails about {query}[ sent by {sender}]
? Did I get an email about {query}[ from {sender}]?
forward_email/email_forward :: Forward an email/Forward a message to someone else
message_id/email_id/id!=ID:Message id; to/recipient!=EMAIL:New recipient; comment/note=TEXT:Text to add
- forward message {message_id} to {to}[ with the comment {comment}]
- forward the email {message_id} to {to}
delete_email/trash_email/remove_email :: Delete an email/Move a message to the trash
message_id/email_id/id!=ID:Message id; permanent=BOOL:Delete for good
- delete the email {message_id}[ {permanent:permanently|but keep it in the trash}]
- move message {message_id} to the trash
set_out_of_office/vacation_reply/auto_reply :: Set an automatic reply/Turn on the out-of-office message
start/start_date/from_date!=DATE:First day; end/end_date/to_date!=DATE:Last day; message/text=TEXT:Reply text
- set an out-of-office reply from {start} to {end}[ saying {message}]
? I am away from {start} until {end}, turn on the automatic reply[ with the text {message}].
label_email/tag_email/add_label :: Add a label to an email/Tag a message
message_id/email_id!=ID:Message id; label/tag!=WORD:Label to add
- label message {message_id} as {label}
- tag the email {message_id} with {label}

@chat mail
send_message/post_message/message_send :: Send a chat message/Post a message to a person
recipient/to/user!=PERSON:Who receives it; text/message/body!=TEXT:Message text; urgent/priority=BOOL:Mark as urgent
- send {recipient} a message saying {text}
- message {recipient}: {text}
- tell {recipient} {text}
- text {recipient} {text}[ and mark it as {urgent:urgent|not urgent}]
post_to_channel/channel_post/announce :: Post to a channel/Write in a team channel
channel/room!=SLUG:Channel name; text/message/content!=TEXT:What to post; pin/pinned=BOOL:Pin the message
- post {text} in the channel {channel}[ {pin:and pin it|without pinning it}]
- write {text} to {channel}
create_group/new_group/make_group_chat :: Create a group chat/Start a group conversation
name/title/group_name!=TITLE:Group name; members/people/participants!=LIST(PERSON):Members
- create a group called {name} with {members}
- start a group chat named {name} with {members}
mute_channel/silence_channel/mute_chat :: Mute a channel/Stop notifications of a channel
channel/room/chat!=SLUG:Channel name; hours/duration_hours=INT(1,72):For how many hours
- mute the channel {channel}[ for {hours} hours]
- silence {channel}[ for {hours} hours]
call_contact/make_call/phone_call/dial :: Call a contact/Make a phone call
name/contact/person!=PERSON:Who to call; video/with_video=BOOL:Video call
- call {name}[ {video:with video|without video}]
- start a call with {name}
add_contact/save_contact/create_contact :: Add a contact/Save a phone number
name/full_name/contact_name!=PERSON:Full name; phone/number/phone_number!=PHONE:Phone number; email/mail=EMAIL:Email address
- save {name} with the number {phone}[ and the email {email}]
- add {name} to my contacts, phone {phone}[, mail {email}]

@calendar time
create_event/add_event/schedule_event/new_event :: Create a calendar event/Add an event to the calendar
title/name/summary!=TITLE:Title of the event; date/day!=DATE:Date; time/start_time/start=TIME:Start time; duration/minutes/duration_minutes=INT(15,240):Length in minutes; attendees/guests/participants=LIST(PERSON):People invited
- schedule {title} on {date}[ at {time}][ for {duration} minutes][ with {attendees}]
- add {title} to my calendar for {date}[ at {time}]
- create an event called {title} on {date}[ at {time}][ and invite {attendees}]
delete_event/cancel_event/remove_event :: Delete a calendar event/Cancel an event
title/event/name!=TITLE:Title of the event; notify/notify_guests=BOOL:Tell the guests
- delete the event {title}[ {notify:and notify everyone|without telling anyone}]
- cancel {title} in my calendar
list_events/get_events/show_calendar/get_agenda :: List events of a day/Show the calendar
date/day!=DATE:Day to show; calendar/calendar_name=ENUM(work,private,family,school):Which calendar
? What is on my [{calendar} ]calendar on {date}?
- list my [{calendar} ]events for {date}
- show my agenda for {date}
move_event/reschedule_event/change_event_time :: Move an event to another time/Reschedule an event
title/event/name!=TITLE:Event; new_date/date/to_date!=DATE:New date; new_time/time=TIME:New time
- move {title} to {new_date}[ at {new_time}]
- reschedule {title} for {new_date}[ at {new_time}]
find_free_slot/find_time/check_availability :: Find free time in calendars/Look for a common free slot
people/attendees/persons!=LIST(PERSON):Whose calendars; minutes/duration!=INT(15,180):Length needed; date/day=DATE:Day
- find {minutes} free minutes for {people}[ on {date}]
? When can {people} meet for {minutes} minutes[ on {date}]?

@reminders time
set_reminder/create_reminder/remind_me/add_reminder :: Set a reminder/Remind the user of something
text/task/message/what!=TASK:What to be reminded of; time/at/when=TIME:Time; date/day=DATE:Day
- remind me to {text}[ at {time}][ on {date}]
- set a reminder to {text}[ on {date}][ at {time}]
? Don't let me forget to {text}[ on {date}].
set_timer/start_timer/new_timer :: Start a timer/Count down some minutes
minutes/duration/length!=INT(1,120):Minutes to count; label/name=TITLE:Name of the timer
- set a timer for {minutes} minutes[ called {label}]
- start a {minutes}-minute timer[ named {label}]
set_alarm/create_alarm/wake_me :: Set an alarm/Wake the user at a time
time/at/alarm_time!=TIME:When to ring; days/weekdays/repeat=LIST(WEEKDAY):Days on which it repeats; sound=ENUM(birds,bell,radio,waves):Alarm sound
- set an alarm for {time}[ on {days}][ with the {sound} sound]
- wake me at {time}[ every {days}]
add_todo/create_task/new_task/add_task :: Add a task to the to-do list/Create a to-do item
task/title/text!=TASK:What to do; priority/importance=ENUM(low,medium,high):Priority; due/due_date/deadline=DATE:Due date
- add a [{priority} priority ]task to {task}[ due {due}]
- put {task} on my to-do list[ for {due}]
get_current_time/current_time/clock :: Get the current time/Tell what time it is
()
? What time is it?
- tell me the current time
? Do you know the time right now?
list_reminders/show_reminders/get_reminders :: List all reminders/Show the pending reminders
()
- show all my reminders
? Which reminders do I have?
complete_task/finish_task/mark_done :: Mark a task as done/Complete a to-do item
task/title/name!=TASK:Task that is done
- mark {task} as done
? I finished this task: {task}.
take_note/create_note/save_note/write_note :: Save a note/Write something down
text/content/note!=TEXT:Text of the note; folder/notebook=WORD:Where to keep it; tags=LIST(WORD):Tags
- note down {text}[ in the folder {folder}]
- take a note: {text}[ tagged {tags}]
- save the note {text}[ with the tags {tags}]

@files files
read_file/open_file/load_file/cat_file :: Read a file/Open a file and return its text
path/file/file_path/filename!=PATH:Path of the file; encoding=ENUM(utf-8,latin-1,ascii):Text encoding; max_lines/lines=INT(5,500):Lines to read at most
- read {path}[ as {encoding}][, at most {max_lines} lines]
- open the file {path}
? What is in {path}?
write_file/save_file/create_file :: Write text to a file/Save content to disk
path/file/filename!=PATH:Where to write; content/text/data!=TEXT:What to write; append=BOOL:Append instead of overwrite
- write {content} to {path}
- save {content} in the file {path}[ {append:appending to it|overwriting it}]
delete_file/remove_file/rm :: Delete a file/Remove a file from disk
path/file/target!=PATH:File to delete; force=BOOL:Do not ask
- delete {path}[ {force:without asking|but ask first}]
- remove the file {path}
disk_usage/free_space/check_disk :: Report free disk space/Check how full the disk is
()
? How much disk space is left?
- check how full the disk is
copy_file/cp/duplicate_file :: Copy a file/Copy a file to another place
source/src/from_path!=PATH:File to copy; destination/dst/to_path!=PATH:Where to copy it; overwrite=BOOL:Replace an existing file
- copy {source} to {destination}[ {overwrite:replacing what is there|without overwriting}]
? I need a copy of {source} at {destination}.
rename_file/move_file/mv :: Rename or move a file/Move a file to a new path
source/old_path/path!=PATH:Current path; destination/new_path/new_name!=PATH:New path
- rename {source} to {destination}
- move {source} to {destination}
list_directory/list_files/ls/list_dir :: List the files of a folder/Show a directory
directory/path/folder!=FOLDER:Folder; pattern/glob=GLOB:Only names that match; recursive=BOOL:Include subfolders
- list the files in {directory}[ matching {pattern}][ {recursive:including subfolders|without subfolders}]
? Which files are in {directory}?
? What {pattern} files are there in {directory}?
search_text/grep/find_in_files :: Search text in files/Find lines that contain a pattern
pattern/query/text!=WORD:Text to find; directory/path/folder=FOLDER:Where to search; ignore_case/case_insensitive=BOOL:Ignore upper and lower case
- search for {pattern} in {directory}[ {ignore_case:ignoring case|matching case}]
- find all lines with {pattern} under {directory}
compress_files/zip_files/create_archive :: Compress files to an archive/Create a zip archive
files/paths/inputs!=LIST(PATH):Files to pack; output/archive/target!=PATH:Archive to create; format=ENUM(zip,tar,gz,7z):Archive format
- pack {files} into {output}[ as {format}]
- compress {files} to {output}[ in {format} format]
make_directory/mkdir/create_folder :: Create a folder/Make a new directory
path/directory/folder!=FOLDER:Folder to create; parents=BOOL:Create missing parents
- create the folder {path}[ {parents:with its parents|without creating parents}]
- make a new directory {path}

@code code
run_tests/test_run/execute_tests :: Run the tests of a project/Execute a test suite
path/target/test_path!=PATH:File or folder; verbose=BOOL:Print details; timeout/timeout_seconds=INT(10,900):Time limit in seconds
- run the tests in {path}[ {verbose:with details|without details}][ with a timeout of {timeout} seconds]
- test {path}[ within {timeout} seconds]
git_commit/commit_changes/commit :: Commit changes/Create a git commit
message/msg/commit_message!=TEXT:Commit message; files/paths=LIST(PATH):Files to commit; amend=BOOL:Amend the last commit
- commit with the message {message}
- commit {files} with the message {message}
create_branch/git_branch/new_branch :: Create a git branch/Make a new branch
name/branch/branch_name!=SLUG:Branch name; base/from_branch/start_point=SLUG:Branch to start from
- create a branch {name}[ from {base}]
- make a new branch called {name}[ based on {base}]
create_issue/open_issue/file_bug :: Open an issue/Create a bug report
repository/repo!=REPO:Repository; title/summary!=TITLE:Title; labels/tags=LIST(WORD):Labels; assignee/assigned_to=PERSON:Who works on it
- open an issue titled {title} in {repository}[ with the labels {labels}]
- file a bug in {repository}: {title}[, assigned to {assignee}]
run_command/execute_command/shell :: Run a shell command/Execute a command line
command/cmd/command_line!=COMMAND:Command to run; cwd/directory/workdir=FOLDER:Working folder; timeout=INT(1,600):Seconds before it is stopped
- run {command}[ in {cwd}]
- execute the command {command}[ with a timeout of {timeout} seconds]
install_package/pip_install/add_package :: Install a package/Add a software package
package/name/package_name!=SLUG:Package name; version=VERSION:Version to install; upgrade=BOOL:Upgrade if installed
- install {package}[ version {version}][ {upgrade:upgrading it|without upgrading}]
- add the package {package}[ in version {version}]
format_code/run_formatter/beautify :: Format source code/Run a formatter on a file
path/file!=PATH:File to format; language/lang=ENUM(python,rust,go,javascript,java,cpp):Language; line_length/width=INT(60,140):Longest line
- format {path}[ as {language}][ with lines of at most {line_length}]
- tidy up the code in {path}
deploy_service/deploy/release_service :: Deploy a service/Release a service to an environment
service/app/service_name!=SLUG:Service; environment/env/stage!=ENUM(production,staging,development,testing):Where; version/tag=VERSION:Version; replicas/instances=INT(1,30):Number of copies
- deploy {service} to {environment}[ in version {version}][ with {replicas} replicas]
- roll out [version {version} of ]{service} on {environment}

@database data
query_table/select_rows/fetch_rows :: Read rows of a table/Query a database table
table/table_name!=TABLE:Table; columns/fields=LIST(TABLE):Columns to return; limit/max_rows=INT(1,500):Number of rows
- get {limit} rows from the table {table}
- select {columns} from {table}[, at most {limit} rows]
? What is in the table {table}?
run_sql/execute_sql/sql_query :: Run a SQL statement/Execute SQL
statement/query/sql!=SQL:SQL to run; database/db=TABLE:Database name; read_only=BOOL:Forbid changes
- run the SQL {statement}[ on the database {database}]
- execute {statement}[ {read_only:in read-only mode|with write access}]
delete_record/delete_row/remove_record :: Delete a record/Remove a row by its id
table/table_name!=TABLE:Table; id/record_id/row_id!=INT(1,99999):Record id
- delete record {id} from {table}
- remove the row with id {id} in the table {table}
count_records/count_rows/row_count :: Count the rows of a table/Number of records
table/table_name/collection!=TABLE:Table; where/filter/condition=CONDITION:Only rows that satisfy this
? How many rows does {table} have[ where {where}]?
- count the records in {table}[ where {where}]
backup_database/create_backup/dump_database :: Back up a database/Write a database backup
database/db/name!=TABLE:Database; path/target/destination=PATH:Where to put it; compress=BOOL:Compress the backup
- back up the database {database}[ to {path}][ {compress:compressed|uncompressed}]
- create a backup of {database}[ in {path}]
export_table/export_data/table_to_file :: Export a table to a file/Save a table as a file
table/table_name!=TABLE:Table; format/file_format!=ENUM(csv,json,parquet,xml,excel):File format; path/output=PATH:Output file
- export {table} as {format}[ to {path}]
- save the table {table} in {format} format[ at {path}]

@math money
calculate/evaluate/compute/calculator :: Evaluate an arithmetic expression/Calculate the value of an expression
expression/formula/expr!=EXPR:Expression; precision/digits/decimals=INT(1,10):Digits after the point
? What is {expression}?
- calculate {expression}[ with {precision} digits]
- compute {expression}[ to {precision} decimals]
solve_equation/equation_solver/solve_for :: Solve an equation/Find the unknown of an equation
equation/formula!=EQUATION:Equation to solve; variable/unknown=ENUM(x,y,z,t):Unknown
- solve {equation}[ for {variable}]
? What is the solution of {equation}?
convert_units/unit_convert/convert_measure :: Convert between units/Convert a measurement
value/amount/quantity!=NUM(0.5,2000):Number to convert; from_unit/source_unit/from!=UNIT:Unit to convert from; to_unit/target_unit/to!=UNIT:Unit to convert to
- convert {value} {from_unit} to {to_unit}
? How many {to_unit} are {value} {from_unit}?
random_number/generate_random/roll_random :: Generate a random number/Pick a number at random
minimum/min/low!=INT(0,50):Smallest value; maximum/max/high!=INT(51,5000):Largest value; count/how_many=INT(2,20):How many numbers
- generate a random number between {minimum} and {maximum}
- give me {count} random numbers from {minimum} to {maximum}
mean/average/compute_mean :: Compute the mean of numbers/Average a list of numbers
numbers/values/data!=LIST(NUM(1,99)):Numbers
? What is the average of {numbers}?
- compute the mean of {numbers}
triangle_area/area_of_triangle/compute_area :: Compute the area of a triangle/Area from base and height
base/width!=NUM(1,90):Length of the base; height!=NUM(1,90):Height; unit=ENUM(cm,m,inches,feet):Unit of length
- find the area of a triangle with base {base} and height {height}[ in {unit}]
? How large is a triangle with a base of {base} and a height of {height}[ {unit}]?
prime_factors/factorize/factor_number :: Factorize an integer/Find the prime factors
number/n/value!=INT(2,99999):Number to factorize
? What are the prime factors of {number}?
- factorize {number}
gcd/greatest_common_divisor/hcf :: Greatest common divisor/Compute the gcd of two numbers
a/first/num1!=INT(2,999):First number; b/second/num2!=INT(2,999):Second number
? What is the greatest common divisor of {a} and {b}?
- find the gcd of {a} and {b}

@language words
translate_text/translate/translation :: Translate text/Translate a text to another language
text/sentence/phrase!=TEXT:Text to translate; target_language/language/to!=LANGUAGE:Language to translate to; source_language/from=LANGUAGE:Language of the text
- translate {text} into {target_language}
- translate {text} from {source_language} to {target_language}
? How do you say {text} in {target_language}?
define_word/dictionary_lookup/get_definition :: Look up a word in the dictionary/Get the definition of a word
word/term!=WORD:Word; language/lang=LANGUAGE:Language
? What does {word} mean[ in {language}]?
- define {word}
- look up the [{language} ]word {word}
find_synonyms/get_synonyms/thesaurus :: Find synonyms of a word/Words with the same meaning
word/term!=WORD:Word; limit/max_results/count=INT(1,20):How many
- find [{limit} ]synonyms of {word}
? What is another word for {word}?
check_spelling/spell_check/correct_spelling :: Check the spelling of a text/Find spelling errors
text/content/sentence!=TEXT:Text to check; language/lang=LANGUAGE:Language
- check the spelling of {text}[ in {language}]
? Is {text} spelled correctly[ in {language}]?
summarize_text/summarize/make_summary :: Summarize a document/Shorten a document to a few sentences
path/document/file!=PATH:Document; sentences/length/max_sentences=INT(1,10):Length in sentences
- summarize {path}[ in {sentences} sentences]
? What does {path} say[ in {sentences} sentences]?
detect_language/identify_language/language_of :: Detect the language of a text/Identify which language a text is in
text/content/sample!=TEXT:Text
? Which language is {text}?
- detect the language of {text}

@web web
web_search/search_web/internet_search :: Search the web/Search the internet
query/q/search_query!=TOPIC:Search words; num_results/limit/count=INT(1,30):Number of results; safe/safe_search=BOOL:Filter adult content
- search the web for {query}[ and show {num_results} results]
- look up {query} online[ {safe:with safe search|without safe search}]
- find {num_results} web pages about {query}
open_url/fetch_page/get_page/visit_url :: Open a web page/Fetch the content of a URL
url/link/address!=URL:Address of the page; timeout/timeout_seconds=INT(1,90):Seconds to wait
- open {url}[ and wait at most {timeout} seconds]
- fetch the page {url}
download_file/download/save_url :: Download a file/Save a URL to disk
url/link/source!=URL:What to download; path/destination/output=PATH:Where to save it; overwrite=BOOL:Replace an existing file
- download {url}[ to {path}]
- save {url}[ as {path}][ {overwrite:overwriting the old file|without overwriting}]
shorten_url/short_link/make_short_link :: Shorten a URL/Create a short link
url/long_url/link!=URL:Address to shorten; alias/slug/custom_name=SLUG:Name of the short link
- shorten {url}[ with the alias {alias}]
- make a short link for {url}[ called {alias}]
get_news/fetch_news/news_headlines :: Get news about a topic/Fetch the latest headlines
topic/subject/query!=TOPIC:Topic; language/lang=LANGUAGE:Language; limit/count/max_articles=INT(1,25):Number of articles
- get the latest [{language} ]news about {topic}
- show me {limit} headlines about {topic}
? What is new about {topic}?
get_wiki/encyclopedia_lookup/lookup_article :: Get an encyclopedia article/Look up a subject in the encyclopedia
title/subject/topic!=TOPIC:Title of the article; section=TITLE:Section to return
- look up {title} in the encyclopedia[, section {section}]
? What does the encyclopedia say about {title}?
"""
