-- Put a record of a queue or a schedule in the place of another, if that is what is there.
-- In: now, which of the two, its name, what must be there and what is to be: nothing for none.

local key = args[2] == "queue" and QUEUES or SCHEDULES
if (call("HGET", key, args[3]) or nil) ~= blob(args[4]) then return 0 end
if args[5] then
  call("HSET", key, args[3], blob(args[5]))
else
  call("HDEL", key, args[3])
end
is_work = args[2] == "queue"
notify()
return 1
