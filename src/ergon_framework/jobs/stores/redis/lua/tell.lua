-- Note that a worker lives. In: now, its id, its record or nothing when it is gone, and for how
-- many seconds the list is kept when nobody tells any more.

if args[3] then
  call("HSET", WORKERS, args[2], pack(">d", now) .. blob(args[3]))
  call("EXPIRE", WORKERS, args[4])
else
  call("HDEL", WORKERS, args[2])
end
return 1
