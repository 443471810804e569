-- Put whole jobs in, as another store had them. In: now, and the jobs. Nobody is woken.

local seq, fence = tonumber(call("GET", LAST_SEQ) or 0), tonumber(call("GET", LAST_FENCE) or 0)

local function put(copy)
  local id, fields, texts, body, tale, found, place, rule = unpack(copy, 1, 8)
  local old, number = job_of(id), nil
  if not old and is_taken[id] then return false end -- by a row that cannot be read
  if old then
    -- One of another instant is another job, which came to the end of the line.
    if old[CREATED_AT] == fields[CREATED_AT] then number = old[SEQ] end
    remove(old)
    gone[id] = nil
  end
  if not number then
    seq = seq + 1
    number = seq
  end
  local job = fields
  for n = 1, 6 do job[QUEUE + n - 1] = texts[n] end
  job[SEQ], job[ID], job[TAG] = number, id, pack(">I8", number) .. id
  job[EXPIRES_AT], job[PURGE_AT] = job[EXPIRES_AT] or FOREVER, job[PURGE_AT] or FOREVER
  if job[STAGE] == WAITS and job[RUN_AT] > now then job[STAGE] = LATER end
  if has(job, IS_UNIQUE) and job[STAGE] ~= ENDED and holder_of(job[UNIQUE_KEY]) then return false end
  jobs[id], changed[id], bodies[id], tales[id] = job, job, blob(body), blob(tale) or false
  labels[id] = found or nil
  fence = max(fence, job[FENCE])
  rank(ALL, id, number)
  if place then
    place[EARLY] = blob(place[EARLY]) or false
    flows().take_in(job, place)
  end
  stand(job, true)
  if rule then
    local taker = taker_of(job[UNIQUE_KEY])
    local last = taker and job_of(taker[1])
    if not last or last[CREATED_AT] <= job[CREATED_AT] then take_key(job, rule[1], rule[2]) end
  end
  return true
end

local ids = {}
for n, copy in ipairs(args[2]) do ids[n] = copy[1] end
load_jobs(ids)
for n, copy in ipairs(args[2]) do
  if not put(copy) then return n end
end
flush()
call("SET", LAST_SEQ, string.format("%.0f", seq))
call("SET", LAST_FENCE, string.format("%.0f", fence))
return 0
