-- Lanes that name an executor, and the queues of each. In: now, after which lane, and how many to read.
-- Out: executors and queues, and the last lane that was read, if there may be more.

local after, most = args[2], args[3]
-- Lanes of no executor stand before all others, and there may be very many of them.
local from = after or sub(named(""), 1, -2) .. ";"
local found = {}
local read = call("ZRANGEBYLEX", LANES, "(" .. from, "+", "LIMIT", 0, most)
for _, lane in ipairs(read) do
  local executor, queue = name_in(lane)
  found[#found + 1] = executor
  found[#found + 1] = queue
end
return {found, #read == most and read[#read]}
