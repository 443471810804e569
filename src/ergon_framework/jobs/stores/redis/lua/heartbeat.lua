-- Note that a worker lives. In: now, its id, its record or nothing when it is gone, for how many
-- seconds the list is kept when nobody tells any more, and its executors. When these were last seen
-- is kept for longer; under the empty name, since when that is noted.

if args[3] then
  call("HSET", WORKERS, args[2], pack(">d", now) .. blob(args[3]))
  call("EXPIRE", WORKERS, args[4])
  call("HSETNX", EXECUTORS, "", exact(now))
  for _, name in ipairs(args[5]) do call("HSET", EXECUTORS, name, exact(now)) end
else
  call("HDEL", WORKERS, args[2])
end
return 1
