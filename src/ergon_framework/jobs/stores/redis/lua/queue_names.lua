-- The names of queues, in no order: Lua compares texts by the locale of the server. In: now, how they
-- begin, whether only those with due jobs are wanted, and at how many jobs that wait for their time or a
-- limit key to look for these.

local prefix, is_due, most = args[2], args[3], args[4]
local is_met, names = {}, {}

local function meet(name)
  if not is_met[name] and sub(name, 1, #prefix) == prefix then
    is_met[name] = true
    names[#names + 1] = name
  end
end

if is_due then
  for _, lane in ipairs(call("ZRANGE", LANES, 0, -1)) do
    local _, queue = name_in(lane)
    meet(queue)
  end
  for _, group in ipairs(call("ZRANGE", ASIDE, 0, most - 1)) do
    local _, rest = name_in(group)
    _, rest = name_in(rest)
    meet(sub(rest, #match(rest, "^%d+:") + 1))
  end
  for _, each in ipairs(call("ZRANGEBYSCORE", SOON, "-inf", now, "LIMIT", 0, most)) do
    local job = job_of(id_in_tag(each))
    if job then meet(job[QUEUE]) end
  end
else
  for _, each in ipairs(call("HKEYS", COUNTS)) do meet(sub(each, 3)) end
  for _, name in ipairs(call("HKEYS", QUEUES)) do meet(name) end
end
return names
