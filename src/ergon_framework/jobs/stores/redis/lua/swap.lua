-- Put a schedule in the place of another, if that is what is there.
-- In: now, its name, what must be there and what is to be: nothing for none.

if (call("HGET", SCHEDULES, args[2]) or nil) ~= blob(args[3]) then return 0 end
if args[4] then
  call("HSET", SCHEDULES, args[2], blob(args[4]))
else
  call("HDEL", SCHEDULES, args[2])
end
return 1
