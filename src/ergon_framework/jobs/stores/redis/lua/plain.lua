-- Add jobs that hold no unique keys: all or none. In: now, and the jobs.
--
-- The same as ``add.lua`` does, which most jobs do not need: every function that a script begins
-- with is made anew whenever it is called. This one stands alone.

if redis.replicate_commands then redis.replicate_commands() end

local args = cmsgpack.unpack(ARGV[1])
local call, pack = redis.call, struct.pack
local now = args[1]
if not now then
  local time = call("TIME")
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local ids, is_known = {}, {}
for n, new in ipairs(args[2]) do
  if is_known[new[1]] then return {"id", n} end
  ids[n], is_known[new[1]] = new[1], true
end
for first = 1, #ids, MOST_ARGS do
  local found = call("HMGET", JOB, unpack(ids, first, math.min(first + MOST_ARGS - 1, #ids)))
  for n, row in ipairs(found) do
    if row then return {"id", first + n - 1} end
  end
end

local rows, bodies, order = {}, {}, {}
local sets, queues = {}, {}
local in_turn, is_limited = {}, {} -- jobs whose limit keys take turns, by lane; and queues like that

local function limits_keys(queue)
  if is_limited[queue] == nil then
    local found = call("HGET", QUEUES, queue)
    local is_read, settings = pcall(cmsgpack.unpack, found or "")
    is_limited[queue] = found and is_read and type(settings) == "table"
      and (settings[6] or settings[7]) and true or false
  end
  return is_limited[queue]
end

local function rank(key, score, member)
  local found = sets[key]
  if not found then
    found = {}
    sets[key] = found
  end
  found[#found + 1] = score
  found[#found + 1] = member
end

local seq = call("INCRBY", LAST_SEQ, #ids) - #ids
for n, new in ipairs(args[2]) do
  local id, queue, executor, priority, delay, run_at, expires_at, _, _, limit_key, limit, body =
    unpack(new, 1, 12)
  seq = seq + 1
  local due = run_at or now + delay
  local is_due = due <= now
  local flags = (limit_key and HAS_KEY or 0) + (expires_at and HAS_EXPIRY or 0)
  limit_key = limit_key or ""
  rows[2 * n - 1] = id
  rows[2 * n] = pack(
    HEAD, is_due and WAITS or LATER, PENDING, flags, 0, 0, 0, 0,
    now, 0, 0, FOREVER, due, expires_at or FOREVER,
    0, 0, seq, limit, priority, now, #queue, #executor, 0, #limit_key
  ) .. queue .. executor .. limit_key
  bodies[2 * n - 1] = id
  bodies[2 * n] = ARGV[3 + body]
  order[2 * n - 1] = seq
  order[2 * n] = id
  local tag = pack(">I8", seq) .. id
  if is_due then
    local instant = pack(">d", due + 0)
    if due >= 0 then
      instant = string.char(string.byte(instant) + 128) .. string.sub(instant, 2)
    else
      instant = string.gsub(instant, ".", function(each)
        return string.char(255 - string.byte(each))
      end)
    end
    local lane = #executor .. ":" .. executor .. ":" .. queue
    if limit_key ~= "" and limits_keys(queue) then
      in_turn[#in_turn + 1] = {lane, limit_key, -priority, instant .. tag}
    else
      rank(lane, -priority, instant .. tag)
    end
  else
    rank(false, due, tag)
  end
  if expires_at then rank(true, expires_at, tag) end
  queues[queue] = (queues[queue] or 0) + 1
end

local function many(command, key, words)
  for first = 1, #words, MOST_ARGS do
    call(command, key, unpack(words, first, math.min(first + MOST_ARGS - 1, #words)))
  end
end

-- The same as in ``rows.lua``.
local function list_lane(lane)
  if call("ZADD", LANES, 0, lane) == 1 and call("EXISTS", CLOSED_LANES) == 1 then
    call("ZADD", OPEN_LANES, 0, lane)
  end
end

many("HSET", JOB, rows)
many("HSET", BODY, bodies)
many("ZADD", ALL, order)
for lane, words in pairs(sets) do
  if lane == false then
    many("ZADD", SOON, words)
  elseif lane == true then
    many("ZADD", EXPIRING, words)
  else
    many("ZADD", DUE .. lane, words)
    list_lane(lane)
  end
end
for _, each in ipairs(in_turn) do
  local lane, key = each[1], each[2]
  call("ZADD", DUE_OF_KEY .. #key .. ":" .. key .. ":" .. lane, each[3], each[4])
  call("ZADD", DUE_KEYS .. lane, 0, key)
  list_lane(lane)
end
for queue, number in pairs(queues) do call("HINCRBY", COUNTS, PENDING .. ":" .. queue, number) end
call("PUBLISH", ARGV[2] .. "work", "")
return {"added"}
