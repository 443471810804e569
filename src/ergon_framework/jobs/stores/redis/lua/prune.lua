-- Purge what has been kept long enough, forget workers, let go who waits for a free limit key, go on
-- with flows, and tell which jobs are outdated. In: now, how many, for how long a silent worker is
-- remembered, and whether jobs and flows may be purged.

local most, purges = args[2], args[4]

local function due(key, number)
  local found = call("ZRANGEBYSCORE", key, "-inf", now, "LIMIT", 0, number)
  local ids = {}
  for n = 1, #found do ids[n] = id_in_tag(found[n]) end
  load_jobs(ids)
  for n, id in ipairs(ids) do
    if not rows[id] then drop_odd(id, key, found[n], found[n]) end
  end
  return ids
end

local purged = due(PURGING, most)
local number = #purged
for _, id in ipairs(purged) do
  local job = job_of(id)
  local taker = job and job[UNIQUE_KEY] ~= "" and taker_of(job[UNIQUE_KEY])
  if taker and taker[1] == id and still_holds(taker, job) then
    line_up(job, false) -- it is kept until it holds its key no more
    job[PURGE_AT] = taker[3]
    line_up(job, true)
    changed[id] = job
    number = number - 1
  elseif job and purges then
    remove(job)
  end
end
flush()

if not purges then number = 0 end
if purges and number < most and call("EXISTS", FLOWS) == 1 then
  number = number + flows().purge(most - number, remove)
end
if call("EXISTS", WORK) == 1 then flows().do_slice() end

local forgotten = 0
local workers = call("HGETALL", WORKERS)
for n = 1, #workers, 2 do
  if #workers[n + 1] < 8 or unpack_from(">d", workers[n + 1]) < now - args[3] then
    forgotten = forgotten + call("HDEL", WORKERS, workers[n])
  end
end

for _, group in ipairs(call("ZRANGE", ASIDE, 0, most - 1)) do freed[(name_in(group))] = 1 end
wake_freed()
-- A program of an earlier version resumes a queue without a word about its lanes: some are looked at each time.
local closed = call("ZCARD", CLOSED_LANES)
if closed > 0 then
  local first = floor(now / 30) % math.ceil(closed / MOST_ARGS) * MOST_ARGS
  for _, lane in ipairs(call("ZRANGE", CLOSED_LANES, first, first + MOST_ARGS - 1)) do
    local _, queue = name_in(lane)
    if not gate_of(queue).is_paused then
      call("ZADD", OPEN_LANES, 0, lane)
      call("ZREM", CLOSED_LANES, lane)
      is_work = true
    end
  end
  if call("EXISTS", CLOSED_LANES) == 0 then call("DEL", OPEN_LANES) end
end
many("ZREM", KEY_BUCKETS, call("ZRANGEBYSCORE", KEY_BUCKETS, "-inf", now, "LIMIT", 0, most))
notify()

local ids, late = {}, {}
if number < most then
  for _, id in ipairs(due(EXPIRING, most - number)) do
    if rows[id] then
      ids[#ids + 1], late[#late + 1] = id, rows[id]
    end
  end
end
flush()
return {cmsgpack.pack({number, forgotten, ids}), concat(late)}
