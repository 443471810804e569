-- Put settings of a queue in the place of others, if those are what is there. In: now, the name, what
-- must be there and what is to be, nothing for none; and, where the limits of its keys have changed,
-- how many keys are looked at again at once.

local queue = args[2]
if (call("HGET", QUEUES, queue) or nil) ~= blob(args[3]) then return 0 end
if args[4] then
  call("HSET", QUEUES, queue, blob(args[4]))
else
  call("HDEL", QUEUES, queue)
end

-- Limit keys take no turns any more: their jobs stand in the lane itself.
local function stand_in_lane(lane)
  local keys = call("ZRANGE", DUE_KEYS .. lane, 0, -1)
  for first = 1, #keys, MOST_ARGS do
    local from = {DUE .. lane}
    for n = first, min(first + MOST_ARGS - 1, #keys) do
      from[#from + 1] = due_of_key(keys[n], lane)
    end
    call("ZUNIONSTORE", DUE .. lane, #from, unpack(from))
    call("DEL", unpack(from, 2))
  end
  call("DEL", DUE_KEYS .. lane)
end

if args[5] then
  if not limits_keys(gate_of(queue)) then
    for _, lane in ipairs(call("ZRANGE", LANES, 0, -1)) do
      local _, name = name_in(lane)
      if name == queue then stand_in_lane(lane) end
    end
  end
  for _, group in ipairs(call("ZRANGE", ASIDE, 0, args[5] - 1)) do freed[(name_in(group))] = 1 end
  wake_freed()
end
if call("EXISTS", CLOSED_LANES) == 1 and not gate_of(queue).is_paused then
  local from = "-"
  while true do -- once for each executor
    local lane = call("ZRANGEBYLEX", CLOSED_LANES, from, "+", "LIMIT", 0, 1)[1]
    if not lane then break end
    local executor = name_in(lane)
    local own = lane_of(executor, queue)
    if call("ZREM", CLOSED_LANES, own) == 1 then call("ZADD", OPEN_LANES, 0, own) end
    from = "(" .. sub(named(executor), 1, -2) .. ";"
  end
  if call("EXISTS", CLOSED_LANES) == 0 then call("DEL", OPEN_LANES) end
end
is_work = true
notify()
return 1
