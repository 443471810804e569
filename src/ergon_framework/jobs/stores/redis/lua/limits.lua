-- What queues allow, and limit keys of queues: so many at once, so many per second. The formula is that of ``core/quota.py``; a
-- test compares the two.

local function open_limits()

local function until_full(gate) return min(gate.full_at - now, gate.burst / gate.rate) end

local function next_token(gate)
  return now + until_full(gate) - (gate.burst - 1) / gate.rate
end

local function tokens(gate)
  local latest = now + gate.burst / gate.rate
  if gate.full_at > latest then -- the clock was set back since: Bucket.healed in core/quota.py
    gate.full_at, gate.is_used = latest, true
  end
  local missing = max(0, until_full(gate)) * gate.rate
  local whole = missing < gate.burst and floor(gate.burst - missing) or 0
  return now >= next_token(gate) and max(whole, 1) or whole
end

local function active_in(queue, gate)
  gate.active = gate.active or tonumber(call("HGET", COUNTS, RUNS .. ":" .. queue) or 0)
  return gate.active
end

local function room_in(queue, gate, most)
  if gate.most then most = min(most, gate.most - active_in(queue, gate)) end
  if gate.rate then most = min(most, tokens(gate)) end
  return max(0, most)
end

local function enter(queue, gate, number)
  if number == 0 then return end
  if gate.most then gate.active = gate.active + number end
  if gate.rate then
    gate.full_at = now + max(0, until_full(gate)) + number / gate.rate
    gate.is_used = true
  end
end

local function waits_until(queue, gate)
  if not gate.rate or tokens(gate) > 0 then return nil end
  if gate.most and active_in(queue, gate) >= gate.most then return nil end
  return next_token(gate)
end

local function save_gates()
  for queue, gate in pairs(gates) do
    if gate.is_used then
      local found = {
        gate.is_paused, gate.most, gate.rate, gate.burst, gate.full_at,
        gate.key_most or false, gate.key_rate or false, gate.key_burst or 1, gate.version,
      }
      call("HSET", QUEUES, queue, cmsgpack.pack(found))
    end
  end
end

-- Limit keys of queues that limit each of them: a gate for each, and when to look again at those of
-- which jobs wait.
local function open_keys()

local of_keys = {}
local key_gates = {} -- by name of the key of a queue
local is_any = false -- whether jobs wait for a token

local function gate_in(queue, key)
  local name, gate = key_in(queue, key), gate_of(queue)
  if not key_gates[name] then
    key_gates[name] = {
      queue = queue, key = key, most = gate.key_most, rate = gate.key_rate, burst = gate.key_burst,
      full_at = gate.key_rate and tonumber(call("ZSCORE", KEY_BUCKETS, name) or 0) or 0,
      active = gate.key_most and running_of(name, KEY_RUNNING),
    }
  end
  return key_gates[name]
end

-- Whether a job may start; then it has.
function of_keys.admit(job)
  local gate = gate_in(job[QUEUE], job[LIMIT_KEY])
  if room_in(nil, gate, 1) == 0 then
    gate.is_blocked = true
    return false
  end
  enter(nil, gate, 1)
  gate.has_entered = true
  return true
end

-- Let jobs go whose keys have tokens again.
function of_keys.wake_due()
  is_any = call("EXISTS", KEY_WAKES) == 1
  if not is_any then return end
  local names = call("ZRANGEBYSCORE", KEY_WAKES, "-inf", now, "LIMIT", 0, MOST_PROMOTED)
  for _, name in ipairs(names) do
    call("ZREM", KEY_WAKES, name)
    local queue, key = name_in(name)
    wake(key, max(1, room_in(nil, gate_in(queue, key), GLANCE)), queue)
  end
  flush()
end

local function has_waiting(gate)
  for _, group in ipairs(groups_of(gate.key)) do
    local _, queue = limit_and_queue(group)
    if queue == gate.queue then return true end
  end
  return false
end

-- Write down what was used; answers when the next key has a token that jobs wait for.
function of_keys.save()
  for name, gate in pairs(key_gates) do
    if gate.is_used then call("ZADD", KEY_BUCKETS, exact(gate.full_at), name) end
    if gate.is_blocked or gate.has_entered then
      local at = room_in(nil, gate, 1) > 0 and now or waits_until(nil, gate)
      if at and (gate.is_blocked or has_waiting(gate)) then
        call("ZADD", KEY_WAKES, exact(at), name)
      end
    end
  end
  if not is_any and next(key_gates) == nil then return nil end
  return tonumber(call("ZRANGE", KEY_WAKES, 0, 0, "WITHSCORES")[2])
end

return of_keys

end

local opened

-- Those of limit keys are made where a queue has settings at all.
return room_in, enter, waits_until, save_gates, function()
  opened = opened or open_keys()
  return opened
end

end
