-- What queues allow: so many at once, so many per second. The formula is that of ``core/limits.py``; a
-- test compares the two.

local function until_full(gate) return min(gate.full_at - now, gate.burst / gate.rate) end

local function next_token(gate)
  return now + until_full(gate) - (gate.burst - 1) / gate.rate
end

local function tokens(gate)
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
      local found = {gate.is_paused, gate.most, gate.rate, gate.burst, gate.full_at}
      call("HSET", QUEUES, queue, cmsgpack.pack(found))
    end
  end
end
