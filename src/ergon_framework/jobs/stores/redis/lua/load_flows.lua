-- Put whole flows in, as another store had them. In: now, and for each its id, how many of its joins
-- were put in before, more joins, and with the last of them its row, its plan and what is left to be
-- done in slices. Its steps are jobs, which are put in by themselves. Nobody is woken.

local function add_joins(id, number, joins)
  if number == 0 then strip(id) end
  if call("LLEN", JOINS .. id) ~= number then return end -- told again: its answer was lost
  local names, left, members = {}, {}, {}
  for n, join in ipairs(joins) do
    names[n], left[join[1]], members[join[1]] = join[1], exact(join[2]), blob(join[3])
  end
  many("RPUSH", JOINS .. id, names)
  write_hash(JOIN, left)
  write_hash(MEMBERS, members)
end

-- In a flow that stops, joins that open are parked; a retry lets the steps go that wait there.
local function park(id)
  local joins, opened = call("LRANGE", JOINS .. id, 0, -1), {}
  for n, left in ipairs(values(JOIN, joins)) do
    if left == "0" then opened[#opened + 1] = joins[n] end
  end
  many("SADD", PARKED .. id, opened)
end

local function put(id, made, plan, work)
  local old = call("HGET", FLOW, id)
  old = old and cmsgpack.unpack(old)
  made[FLOW_SEQ] = old and old[FLOW_SEQ] or call("INCR", LAST_SEQ)
  if old then call("ZREM", FLOWS_IN .. old[STANDING], id) end
  call("ZADD", FLOWS_IN .. made[STANDING], exact(made[FLOW_SEQ]), id)
  call("ZADD", FLOWS, exact(made[FLOW_SEQ]), id)
  if made[FLOW_PURGE_AT] then
    call("ZADD", FLOW_PURGING, exact(made[FLOW_PURGE_AT]), id)
  else
    call("ZREM", FLOW_PURGING, id)
  end
  call("HSET", PLAN, id, plan)
  call("HSET", FLOW, id, cmsgpack.pack(made))
  for target, kind in pairs(work) do
    call("HSET", WORK_KINDS, target, cmsgpack.pack({kind, 0}))
    call("ZADD", WORK, exact(now), target)
  end
  local stopping = STOPPING_FLOWS
  if stopping[made[STANDING]] then park(id) end
end

for _, each in ipairs(args[2]) do
  local id, number, joins, made, plan, work = unpack(each, 1, 6)
  add_joins(id, number, joins)
  if made then put(id, made, blob(plan), work) end
end
return 1
