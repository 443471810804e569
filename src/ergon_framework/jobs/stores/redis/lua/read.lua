-- Look at jobs. In: now, where to look (``ids``, ``overdue``, ``prunable``, ``named``, ``after``, ``flow:``
-- with its id, ``tag:`` with it, or a set by order of adding), the ids, the executor or the number to
-- begin at, how many, and what must match; for ``named``, before when they became due; for ``after`` and
-- ``prunable``, how many bytes there may be.

local where, from, most, wanted = args[2], args[3], args[4], args[5]
local ids, last = {}, false

if where == "ids" then
  ids = from
elseif where == "overdue" then
  for n, each in ipairs(call("ZRANGEBYSCORE", LEASES, "-inf", now, "LIMIT", 0, most)) do
    ids[n] = id_in_tag(each)
  end
elseif where == "named" then
  -- In a lane, those of one priority stand in the order in which they became due.
  local function look_into(key)
    local score, offset = "-inf", 0
    while #ids < most do
      local found = call("ZRANGEBYSCORE", key, score, "+inf", "WITHSCORES", "LIMIT", offset, 1)
      if #found == 0 then return end
      local job = job_of(id_in_place(found[1]))
      if job and job[RUN_AT] < wanted[4] then
        ids[#ids + 1] = job[ID]
        score, offset = found[2], score == found[2] and offset + 1 or 1
      elseif job then
        score, offset = "(" .. found[2], 0
      else
        score, offset = found[2], score == found[2] and offset + 1 or 1
      end
    end
  end
  local prefix = named(from[1])
  local stop = "(" .. sub(prefix, 1, -2) .. ";"
  for _, lane in ipairs(call("ZRANGEBYLEX", LANES, "[" .. prefix, stop)) do
    look_into(DUE .. lane)
    for _, key in ipairs(call("ZRANGE", DUE_KEYS .. lane, 0, most - 1)) do
      look_into(due_of_key(key, lane))
    end
  end
elseif where == "after" or where == "prunable" then
  local size, found = 0, nil
  if where == "prunable" then
    -- Without those that hold a unique key still. A prune lines them up for when they do no more; until
    -- it has come to them they must not hide those behind them.
    found = {}
    for page = 0, MOST_PAGES - 1 do
      local due = call("ZRANGEBYSCORE", PURGING, "-inf", now, "LIMIT", page * most, most)
      for _, each in ipairs(due) do
        local id = id_in_tag(each)
        local job = job_of(id)
        local taker = job and job[UNIQUE_KEY] ~= "" and taker_of(job[UNIQUE_KEY])
        local holds = taker and taker[1] == id and still_holds(taker, job)
        if #found < most and not holds then found[#found + 1] = id end
      end
      if #found == most or #due < most then break end
    end
  else
    found = call("ZRANGEBYSCORE", ALL, "(" .. from, "+inf", "LIMIT", 0, most)
  end
  for n, id in ipairs(found) do
    size = size + call("HSTRLEN", BODY, id) + call("HSTRLEN", TALE, id)
    if n > 1 and size > wanted[1] then break end
    ids[n] = id
  end
  wanted = nil
else
  local key = where == "all" and ALL or IN .. where
  if sub(where, 1, 5) == "flow:" then key = STEPS .. sub(where, 6) end
  local found = call("ZREVRANGEBYSCORE", key, "(" .. from, "-inf", "WITHSCORES", "LIMIT", 0, most)
  for n = 1, #found, 2 do
    ids[#ids + 1] = where == "all" and found[n] or id_in_tag(found[n])
  end
  if #ids == most then last = tonumber(found[#found]) end
end

local statuses
if wanted and wanted[1] then
  statuses = {}
  for _, each in ipairs(wanted[1]) do statuses[each] = true end
end

local function matches(id)
  if not wanted then return true end
  local job = job_of(id)
  if statuses and not statuses[job[STATUS]] then return false end
  if wanted[2] and job[QUEUE] ~= wanted[2] then return false end
  if wanted[5] and job[STAGE] == JOINING then return false end
  if wanted[6] and job[CREATED_AT] < wanted[6] then return false end
  if wanted[7] and job[CREATED_AT] >= wanted[7] then return false end
  return not wanted[3] or job[CHANGED_AT] < wanted[3]
end

load_jobs(ids)
local found, missed = {}, {} -- those that cannot be read, where that matters
local tells_all = where == "ids" or where == "after"
for _, id in ipairs(ids) do
  if rows[id] then
    if matches(id) then found[#found + 1] = id end
  elseif is_taken[id] and (tells_all or odd[id]) then
    missed[#missed + 1] = id
  end
end
local places = {} -- of steps
for _, id in ipairs(found) do
  if byte(rows[id], 3) >= IS_STEP then places[#places + 1] = id end
end
if #places > 0 then
  flows().load(places)
  for n, id in ipairs(places) do places[n] = {id, flows().shown(id)} end
end
local lengths, sizes, data, texts, told = shown(found, true)
return {cmsgpack.pack({found, lengths, sizes, last, missed, places}), data, texts, told}
