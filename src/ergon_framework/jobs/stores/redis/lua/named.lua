-- The executors and queues that due jobs name, and when each executor was last seen.

local found = {}
for _, lane in ipairs(call("ZRANGE", LANES, 0, -1)) do
  local executor, queue = name_in(lane)
  if executor ~= "" then
    found[#found + 1] = executor
    found[#found + 1] = queue
  end
end
return {found, call("HGETALL", EXECUTORS)}
