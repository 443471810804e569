-- The next queues with due jobs, of some executors. In: now, how the names begin, "[" or "(" and the name from
-- or after which they are wanted, how many of each executor, behind which lane the executors are looked for, and
-- how many of these. Out: names in no order, and behind which lane to go on, if there may be other executors.

local prefix, bound, name, most, from, executors = unpack(args, 2, 7)
local found = {}
for _ = 1, executors do
  local lane = call("ZRANGEBYLEX", LANES, from, "+", "LIMIT", 0, 1)[1]
  if not lane then return {found, false} end
  local mine = named((name_in(lane)))
  from = "(" .. sub(mine, 1, -2) .. ";" -- behind all lanes of this executor
  for _, each in ipairs(call("ZRANGEBYLEX", LANES, bound .. mine .. name, from, "LIMIT", 0, most)) do
    local _, queue = name_in(each)
    if sub(queue, 1, #prefix) == prefix then found[#found + 1] = queue end
  end
end
return {found, from}
