-- Claiming: which of the due jobs a worker gets.
--
-- Due jobs stand in lanes, one for each executor and queue that they name. Only lanes are looked at
-- for which the worker has a slot, and of those only the first entries, so a claim costs the same
-- however many jobs wait. The queues of an executor take turns at being first, and get equal
-- shares; what one leaves goes to the others. Within a queue, priority decides, then age. The rules
-- are those of core/claim.py, which this file repeats because a script cannot call it.

local claimed, outdated, next_at, expires_at = {}, {}, FOREVER, FOREVER
local turns -- by executor the queue that was first the last time
local handler_lanes = {} -- in which jobs are due

-- Answers the function that claims. Its parts are made when a script is going to: some only settle.
local function open_claim()

local room_in, enter, waits_until, save_gates, of_keys = open_limits()
local find = string.find

local ask -- what the worker asks
local fence -- of the latest claim
local refused = 0
local read = {} -- by lane: how many of its entries were dealt with
local running = {} -- by limit key
local open_set -- the lanes to look into
local number_closed = 0 -- lanes of paused queues that were met

local function soon(instant) next_at = min(next_at, instant) end

-- ---- lanes --------------------------------------------------------------------------------------

local function left_in(executor, queue)
  local lane = lane_of(executor, queue)
  local key = DUE .. lane
  return call("ZCARD", key) > (read[key] or 0)
    or (limits_keys(gate_of(queue)) and call("EXISTS", DUE_KEYS .. lane) == 1)
end

-- A queue that is pinned to another version is as good as paused: QueueLimits.seen_by.
local function is_open(queue)
  local gate = gate_of(queue)
  return not gate.is_paused and (not gate.version or gate.version == ask.version)
end

local function is_served(queue)
  return (not ask.queues or ask.queues[queue]) and is_open(queue)
end

-- Set the lanes of paused queues apart. Done for all of them once; from then on with each lane.
local function set_apart()
  call("DEL", OPEN_LANES, CLOSED_LANES)
  local from = "-"
  while from do
    local some = call("ZRANGEBYLEX", LANES, from, "+", "LIMIT", 0, MOST_ARGS)
    local queues, open, closed = {}, {}, {}
    for n, lane in ipairs(some) do
      local _, queue = name_in(lane)
      queues[n] = queue
    end
    know_gates(queues)
    for n, lane in ipairs(some) do
      local set = gate_of(queues[n]).is_paused and closed or open
      set[#set + 1] = 0
      set[#set + 1] = lane
    end
    many("ZADD", OPEN_LANES, open)
    many("ZADD", CLOSED_LANES, closed)
    from = #some == MOST_ARGS and "(" .. some[#some]
  end
  if call("EXISTS", CLOSED_LANES) == 0 then call("DEL", OPEN_LANES) end
end

-- The set of lanes to look into: without those of paused queues, once a claim has met very many. Both sets
-- together are all lanes, unless a program of an earlier version, which does not know them, has changed some.
local function open_lanes()
  if open_set then return open_set end
  open_set = LANES
  if has_gates then
    local closed = call("ZCARD", CLOSED_LANES)
    if closed > 0 and closed + call("ZCARD", OPEN_LANES) ~= call("ZCARD", LANES) then
      set_apart()
      closed = call("ZCARD", CLOSED_LANES)
    end
    if closed > 0 then open_set = OPEN_LANES end
  end
  return open_set
end

-- The queues with due jobs that name an executor, from after one up to another, as Redis has them.
local function listed(found, executor, from, to)
  local start = #named(executor) + 1
  while #found < MOST_LANES do
    local set = open_lanes()
    local some = call("ZRANGEBYLEX", set, from, to, "LIMIT", 0, MOST_LANES)
    local queues, closed = {}, {}
    for n, lane in ipairs(some) do queues[n] = sub(lane, start) end
    know_gates(queues)
    for n, queue in ipairs(queues) do
      if gate_of(queue).is_paused then
        closed[#closed + 1] = some[n]
      elseif #found < MOST_LANES and is_open(queue) then
        found[#found + 1] = queue
      end
    end
    if #some > 0 then from = "(" .. some[#some] end
    if set == LANES then
      number_closed = number_closed + #closed
      if number_closed > MOST_CLOSED then
        set_apart()
        open_set = nil
      end
    else
      for _, lane in ipairs(closed) do call("ZADD", CLOSED_LANES, 0, lane) end
      many("ZREM", OPEN_LANES, closed)
    end
    if #some < MOST_LANES then break end
  end
end

-- All such queues from the one whose turn it is, without those that are not open or not served.
local function open_queues(executor, first)
  local found = {}
  if ask.queues then
    for _, queue in ipairs(ask.in_order) do
      if left_in(executor, queue) and is_open(queue) then
        found[#found + 1] = queue
      end
    end
    return found
  end
  local prefix = named(executor)
  local stop = "(" .. sub(prefix, 1, -2) .. ";"
  if first == "" then
    listed(found, executor, "[" .. prefix, stop)
  else
    listed(found, executor, "(" .. prefix .. first, stop)
    listed(found, executor, "[" .. prefix, "[" .. prefix .. first)
  end
  return found
end

-- The queues whose jobs go to this executor when they name none; ``lane`` is empty, or that of jobs
-- which name none and wait for a handler.
local function unnamed(executor, lane)
  local found = {}
  for queue, route in pairs(ask.routes) do
    if route == executor and is_served(queue) and left_in(lane, queue) then
      found[#found + 1] = queue
    end
  end
  if executor == ask.default then
    for _, queue in ipairs(open_queues(lane, turns[executor] or "")) do
      if not ask.routes[queue] then found[#found + 1] = queue end
    end
  end
  return found
end

-- The executors that due jobs name, and the lanes of handlers in which some are due.
local function executors()
  local found, waiting, from = {}, {}, "-"
  for _ = 1, MOST_LANES do
    local lane = call("ZRANGEBYLEX", LANES, from, "+", "LIMIT", 0, 1)[1]
    if not lane then break end
    local name = name_in(lane)
    if find(name, "#", 1, true) then
      waiting[#waiting + 1] = name
    elseif name ~= "" then
      found[#found + 1] = name
    end
    from = "(" .. sub(named(name), 1, -2) .. ";"
  end
  return found, waiting
end

-- By queue: under which names the due jobs for an executor stand.
local function lanes_for(executor)
  local found, names = {}, {}
  local function add(lane, queues)
    for _, queue in ipairs(queues) do
      if names[queue] then
        names[queue][#names[queue] + 1] = lane
      else
        found[#found + 1], names[queue] = queue, {lane}
      end
    end
  end
  if executor ~= "" then add(executor, open_queues(executor, turns[executor] or "")) end
  add("", unnamed(executor, ""))
  for _, handler in ipairs(ask.handlers[executor] or {}) do
    local lane = executor .. "#" .. handler
    add(lane, open_queues(lane, turns[executor] or ""))
    add("#" .. handler, unnamed(executor, "#" .. handler))
  end
  return found, names
end

-- ---- one job ------------------------------------------------------------------------------------

local function is_before(one, other)
  one, other = job_of(one), job_of(other)
  if one[PRIORITY] ~= other[PRIORITY] then return one[PRIORITY] > other[PRIORITY] end
  if one[RUN_AT] ~= other[RUN_AT] then return one[RUN_AT] < other[RUN_AT] end
  return one[SEQ] < other[SEQ]
end

-- The ids of the first jobs of a queue that stand under these names, their places, and the sets they
-- stand in: those of one limit key, or of the lanes.
local function candidates(names, queue, wanted, limit_key)
  local ids, places, keys = {}, {}, {}
  for _, name in ipairs(names) do
    local lane = lane_of(name, queue)
    local key = limit_key and due_of_key(limit_key, lane) or DUE .. lane
    local first = read[key] or 0
    for _, member in ipairs(call("ZRANGE", key, first, first + wanted - 1)) do
      local id = id_in_place(member)
      ids[#ids + 1], places[id], keys[id] = id, member, key
    end
  end
  load_jobs(ids)
  local found = {}
  for _, id in ipairs(ids) do
    if rows[id] then
      found[#found + 1] = id
    else
      local key = keys[id]
      drop_odd(id, key, places[id], tag_in(places[id]), queue)
      read[key] = (read[key] or 0) + 1
      if limit_key then
        local lane = sub(key, #due_of_key(limit_key, "") + 1)
        lanes[key], lanes[DUE .. lane] = {DUE_KEYS .. lane, limit_key}, {LANES, lane}
      else
        lanes[key] = lanes[key] or {LANES, sub(key, #DUE + 1)}
      end
      soon(now) -- others may stand behind it
    end
  end
  ids = found
  if #names > 1 then
    table.sort(ids, is_before)
    for n = #ids, wanted + 1, -1 do ids[n] = nil end
  end
  return ids, places, keys
end

-- Limit keys with jobs of a lane that were not dealt with, from after one, as many as are wanted.
local function keys_after(found, lane, from, to, wanted)
  local offset = 0
  while #found < wanted do
    local some = call("ZRANGEBYLEX", DUE_KEYS .. lane, from, to, "LIMIT", offset, wanted)
    for _, key in ipairs(some) do
      local set = due_of_key(key, lane)
      if not read[set] or call("ZCARD", set) > read[set] then found[#found + 1] = key end
    end
    if #some < wanted then break end
    offset = offset + wanted
  end
end

-- The limit keys of a queue in the order in which it is their turn; ``in_turn`` of core/claim.py.
local function keys_in_turn(names, queue, after, wanted, has_free)
  local found, order = {}, {}
  for _, name in ipairs(names) do
    local lane, mine = lane_of(name, queue), {}
    keys_after(mine, lane, "(" .. after, "+", wanted)
    if #mine < wanted then keys_after(mine, lane, "-", "[" .. after, wanted) end
    for _, key in ipairs(mine) do found[key] = true end
  end
  if has_free then found[""] = true end
  for key in pairs(found) do order[#order + 1] = key end
  table.sort(order, function(one, other)
    local is_late, is_later = one <= after, other <= after
    if is_late ~= is_later then return is_later end
    return one < other
  end)
  for n = #order, wanted + 1, -1 do order[n] = nil end
  return order
end

-- The first jobs of the limit keys whose turn it is, one of each in turn; ``deal`` of core/claim.py.
local function candidates_in_turn(names, queue, wanted, share)
  local after = turns[share] or ""
  local free, places, keys = candidates(names, queue, wanted)
  local order, heads, dealt = keys_in_turn(names, queue, after, wanted, #free > 0), {}, {}
  if #order == 0 then return {}, places, keys end
  local each = math.ceil(wanted / #order)
  for _, key in ipairs(order) do
    if key == "" then
      heads[key] = free
    else
      local ids, more, sets_of = candidates(names, queue, each, key)
      heads[key] = ids
      for _, id in ipairs(ids) do places[id], keys[id] = more[id], sets_of[id] end
    end
  end
  for n = 1, each do
    for _, key in ipairs(order) do
      if #dealt < wanted and heads[key][n] then
        dealt[#dealt + 1] = heads[key][n]
        turns[share] = key
      end
    end
  end
  return dealt, places, keys
end

-- Let more jobs of limit keys wait that are used up, so that the next claims meet fewer.
local function block_rest(names, queue, used_up)
  for key in pairs(used_up) do
    local ids, _, keys = candidates(names, queue, GLANCE, key)
    for _, id in ipairs(ids) do
      read[keys[id]] = (read[keys[id]] or 0) + 1
      shift(job_of(id), LIMITED)
      refused = refused + 1
    end
  end
end

local function has_room(job)
  local key, limit = job[LIMIT_KEY], job[MOST_OF_KEY]
  if limits_keys(gate_of(job[QUEUE])) then
    local is_admitted = of_keys().admit(job)
    if is_admitted and running[key] then running[key] = running[key] + 1 end -- in all queues
    return is_admitted
  end
  local number = running[key] or running_of(key)
  running[key] = number < limit and number + 1 or number
  return number < limit
end

local function lease(job)
  stand(job, false)
  fence = fence + 1
  job[STAGE], job[STATUS], job[FENCE], job[DELIVERIES] = ACTIVE, RUNS, fence, job[DELIVERIES] + 1
  job[CHANGED_AT], job[CLAIMED_AT], job[LEASED_UNTIL] = now, now, now + ask.lease
  job[WORKER], job[WHY] = ask.worker, ""
  set_flag(job, IS_CHARGED, false)
  stand(job, true)
  changed[job[ID]] = job
end

-- What most claims are: a pending job of which nothing special is known. The same as ``lease`` in
-- fewer steps, on the row as it is; false where that does not do.
local function lease_plain(id, key, member, queue)
  local row = rows[id]
  if jobs[id] ~= nil or not row then return false end
  local _, status, flags, _, deliveries = unpack_from(">BBBI8I4", row)
  if status ~= PENDING or flags % IS_STEP >= IS_UNIQUE or flags % HAS_TALE >= HAS_EXPIRY
    or (is_sweeping and flags >= IS_STEP) then
    return false
  end
  local why = unpack_from(">I4", row, 72)
  fence = fence + 1
  rows[id] = pack(">BBBI8I4", ACTIVE, RUNS, flags, fence, deliveries + 1)
    .. sub(row, 16, 23) .. ask.times .. sub(row, 48, 71) .. ask.lengths
    .. sub(row, 80, #row - why) .. ask.worker
  written[id] = rows[id]
  rank(key, member, false)
  rank(LEASES, tag_in(member), ask.ends)
  count(PENDING, queue, -1)
  count(RUNS, queue, 1)
  return true
end

-- Whether a job that is due may start; one that may not stops being due.
local function may_start(job)
  if is_sweeping and has(job, IS_STEP) and flows().is_stopped(job) then
    flows().cancel(job) -- the sweep has not come to it yet
    return false
  end
  if job[EXPIRES_AT] <= now then
    outdated[#outdated + 1] = job[ID]
    shift(job, OUTDATED) -- the caller ends it; if it cannot, a sweep does
    return false
  end
  if has(job, HAS_KEY) and not has_room(job) then
    shift(job, LIMITED)
    return false, job[LIMIT_KEY]
  end
  return true
end

-- Lease the first that may start.
local function admit(ids, places, keys, queue, room)
  local admitted, used_up = 0, {}
  for _, id in ipairs(ids) do
    if admitted == room then break end
    local key = keys[id]
    read[key] = (read[key] or 0) + 1
    if lease_plain(id, key, places[id], queue) then
      lanes[key] = lanes[key] or {LANES, sub(key, #DUE + 1)}
      admitted = admitted + 1
      claimed[#claimed + 1] = id
    else
      local is_allowed, limit_key = may_start(job_of(id))
      if is_allowed then
        lease(job_of(id))
        admitted = admitted + 1
        claimed[#claimed + 1] = id
      else
        refused = refused + 1
        if limit_key then used_up[limit_key] = true end
      end
    end
  end
  return admitted, used_up
end

-- ---- shares -------------------------------------------------------------------------------------

local function take(executor, queue, names, most)
  local gate, taken = gate_of(queue), 0
  local share = "\1" .. lane_of(executor, queue) -- no executor is called like that
  while taken < most do
    if refused >= MOST_REFUSED or #claimed >= MOST_AT_ONCE then
      soon(now) -- there may be more: ask again at once
      break
    end
    local room = room_in(queue, gate, min(most - taken, MOST_AT_ONCE - #claimed))
    if room == 0 then break end
    local wanted = refused == 0 and room or max(room, GLANCE)
    local found, places, keys
    if limits_keys(gate) then
      wanted = room
      found, places, keys = candidates_in_turn(names, queue, wanted, share)
    else
      found, places, keys = candidates(names, queue, wanted)
    end
    local admitted, used_up = admit(found, places, keys, queue, room)
    if limits_keys(gate) then block_rest(names, queue, used_up) end
    enter(queue, gate, admitted)
    taken = taken + admitted
    if #found < wanted and (#found == 0 or not limits_keys(gate)) then break end
  end
  local instant = waits_until(queue, gate)
  if instant then
    for _, name in ipairs(names) do
      if left_in(name, queue) then soon(instant) end
    end
  end
  return taken
end

-- The queues of an executor that may have more, in turn from the one after ``first``.
local function in_turn(plan, first)
  local open = {}
  for _, queue in ipairs(plan.queues) do
    if not plan.spent[queue] then open[#open + 1] = queue end
  end
  table.sort(open, function(one, other)
    local is_late, is_later = one <= first, other <= first
    if is_late ~= is_later then return is_later end
    return one < other
  end)
  return open
end

-- One share for each queue of an executor; whether there was anything to share.
local function cycle(plan)
  local executor, left = plan.executor, plan.left
  local open = in_turn(plan, turns[executor] or "")
  if left == 0 or #open == 0 then return false end
  if not plan.has_turned then
    plan.has_turned = true
    -- With fewer slots than queues, those that got nothing come first the next time.
    turns[executor] = open[left < #open and left or 1]
  end
  local part, rest = floor(left / #open), left % #open
  for n, queue in ipairs(open) do
    local most = part + (n <= rest and 1 or 0)
    if most > 0 then
      local taken = take(executor, queue, plan.names[queue], most)
      plan.left = plan.left - taken
      plan.spent[queue] = taken < most
    end
  end
  return true
end

-- Equal shares; what one queue leaves is shared among the others in the next cycle. The same as
-- ClaimPlan in core/claim.py decides, which a test compares with this.
local function share_all()
  local plans = {}
  for n, executor in ipairs(ask.busy) do
    local queues, names = lanes_for(executor)
    plans[n] = {
      executor = executor, left = ask.slots[executor], queues = queues, names = names, spent = {},
    }
  end
  local goes_on = true
  while goes_on do
    goes_on = false
    for _, plan in ipairs(plans) do goes_on = cycle(plan) or goes_on end
  end
end

-- ---- what is left -------------------------------------------------------------------------------

-- Those whose time has come may be claimed.
local function promote()
  local found = call("ZRANGEBYSCORE", SOON, "-inf", now, "LIMIT", 0, MOST_PROMOTED)
  if #found == 0 then return end
  local ids = {}
  for n = 1, #found do ids[n] = id_in_tag(found[n]) end
  load_jobs(ids)
  for n, id in ipairs(ids) do
    local job = job_of(id)
    if job then shift(job, WAITS) else drop_odd(id, SOON, found[n], found[n]) end
  end
  flush()
end

-- The earliest instant at which something that waits could be claimed, and that of the first expiry.
local function look_ahead()
  expires_at = tonumber(call("ZRANGE", EXPIRING, 0, 0, "WITHSCORES")[2]) or FOREVER
  local found = call("ZRANGE", SOON, 0, GLANCE - 1, "WITHSCORES")
  for n = 1, #found, 2 do
    local job = job_of(id_in_tag(found[n]))
    if job and is_served(job[QUEUE]) then return soon(tonumber(found[n + 1])) end
  end
  if #found == 2 * GLANCE then soon(tonumber(found[#found])) end
end

local function is_for_us(queue, name)
  local executor, handler = match(name, "^([^#]*)#(.*)$")
  executor = executor or name
  if executor == "" then executor = ask.routes[queue] or ask.default end
  if handler then
    local is_ours = false
    for _, each in ipairs(ask.handlers[executor] or {}) do is_ours = is_ours or each == handler end
    if not is_ours then return false end
  end
  return next(ask.own) == nil or ask.own[executor]
end

-- Whether a due job was left that this worker could run, now or later.
local function is_more()
  local names, all = {}, nil
  all, handler_lanes = executors()
  if next(ask.own) == nil then
    names = all
    names[#names + 1] = ""
  else
    for executor in pairs(ask.own) do names[#names + 1] = executor end
  end
  for _, name in ipairs(names) do
    if #open_queues(name, "") > 0 then return true end
  end
  for executor in pairs(ask.own) do
    if #unnamed(executor, "") > 0 then return true end
  end
  for executor, handlers in pairs(ask.handlers) do
    for _, handler in ipairs(handlers) do
      if #open_queues(executor .. "#" .. handler, "") > 0 then return true end
      if #unnamed(executor, "#" .. handler) > 0 then return true end
    end
  end
  for _, group in ipairs(call("ZRANGE", ASIDE, 0, MOST_LANES - 1)) do
    local _, rest = name_in(group)
    local executor, tail = name_in(rest)
    local queue = sub(tail, #match(tail, "^%d+:") + 1)
    if is_served(queue) and is_for_us(queue, executor) then return true end
  end
  return false
end

local function set_of(list)
  local found = {}
  for _, each in ipairs(list) do found[each] = true end
  return found
end

local function asked(words)
  local worker, lease_time, slots, default, routes, own, queues, asks_more, last, handlers, version =
    unpack(words, 1, 11)
  ask = {
    worker = worker, lease = lease_time, slots = {}, busy = {}, default = default, routes = routes,
    own = set_of(own), queues = queues and set_of(queues),
    in_order = queues, asks_more = asks_more, handlers = handlers, version = version,
  }
  ask.times = pack(">ddd", now, now, now + lease_time)
  ask.ends = exact(now + lease_time)
  ask.lengths = pack(">I4I4", 0, #worker)
  turns = last
  for _, pair in ipairs(slots) do
    ask.slots[pair[1]] = pair[2]
    if pair[2] > 0 then ask.busy[#ask.busy + 1] = pair[1] end
  end
end

return function(words)
  asked(words)
  fence = max(tonumber(call("GET", LAST_FENCE) or 0), floor(now * 1000000))
  promote()
  if has_gates == nil then has_gates = call("EXISTS", QUEUES) == 1 end
  if has_gates then of_keys().wake_due() end
  share_all()
  flush()
  if book then book.finish() end -- steps of flows that stop were cancelled
  save_gates()
  if has_gates then soon(of_keys().save() or FOREVER) end
  if #claimed > 0 then call("SET", LAST_FENCE, string.format("%.0f", fence)) end
  read, open_set = {}, nil
  look_ahead()
  return ask.asks_more and is_more()
end

end
