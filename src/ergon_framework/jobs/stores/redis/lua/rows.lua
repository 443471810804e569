-- Rows of jobs, and what is to be written. Nearly every script has this behind ``head.lua``.
--
-- Words in capitals are put in by ``names.py``: keys, the places of a row, stages, statuses, flags.
-- Nothing is written before ``flush``: a script that finds a reason to refuse returns without it,
-- and has changed nothing. What was read is kept, so that a script sees its own changes.

-- A row has numbers, then texts whose lengths stand among the numbers. ``rows.py`` reads the same. In
-- bytes: stage 1, status 2, flags 3, fence 4, deliveries 12, attempts 16, excused 20; instants of the
-- last change 24, the claim 32, the lease 40, purging 48, being due 56, expiry 64; lengths of why 72
-- and worker 76; seq 80, limit 88, priority 92, creation 100; lengths of queue 108, executor 112,
-- unique key 116, limit key 120; then these six texts, from 124 on, why and worker last.

local function has(job, flag)
  return job[FLAGS] % (2 * flag) >= flag
end

local function set_flag(job, flag, is_set)
  local was = has(job, flag)
  if was ~= is_set then job[FLAGS] = job[FLAGS] + (is_set and flag or -flag) end
end

local function parsed(id, row)
  local job = {unpack_from(HEAD, row)}
  local at = job[QUEUE] -- where the texts begin
  for n = 0, 3 do
    local length = job[QUEUE_LENGTH + n]
    job[QUEUE + n] = length == 0 and "" or sub(row, at, at + length - 1)
    at = at + length
  end
  job[WHY] = sub(row, at, at + job[WHY_LENGTH] - 1)
  job[WORKER] = sub(row, at + job[WHY_LENGTH])
  job[ID], job[TAG] = id, sub(row, 80, 87) .. id
  return job
end

local function row_of(job)
  for n = 0, 3 do job[QUEUE_LENGTH + n] = #job[QUEUE + n] end
  job[WHY_LENGTH], job[WORKER_LENGTH] = #job[WHY], #job[WORKER]
  set_flag(job, HAS_EXPIRY, job[EXPIRES_AT] < FOREVER)
  return pack(HEAD, unpack(job, 1, KEY_LENGTH)) .. concat(job, "", QUEUE, WORKER)
end

-- An instant as bytes whose order is that of time.
local function ordered(instant)
  local text = pack(">d", instant + 0)
  if instant >= 0 then return char(byte(text) + 128) .. sub(text, 2) end
  return (gsub(text, ".", function(each) return char(255 - byte(each)) end))
end

-- A job stands in most sets under its tag, where its order of adding breaks a tie. In those from
-- which it is claimed, priority, due time and order of adding decide: there it has a place.
local function place(job) return ordered(job[RUN_AT]) .. job[TAG] end
local function tag_in(text) return sub(text, 9) end
local function id_in_tag(text) return sub(text, 9) end
local function id_in_place(text) return sub(text, 17) end

-- Lanes and groups begin with names whose lengths are told, so that all of one can be listed.
local function named(text) return #text .. ":" .. text .. ":" end
local function lane_of(executor, queue) return named(executor) .. queue end
local function key_in(queue, key) return named(queue) .. key end
local function due_of_key(key, lane) return DUE_OF_KEY .. named(key) .. lane end

local function group_of(job)
  return named(job[LIMIT_KEY]) .. named(job[EXECUTOR]) .. job[MOST_OF_KEY] .. ":" .. job[QUEUE]
end

local function name_in(text)
  local length, rest = match(text, "^(%d+):(.*)$")
  length = tonumber(length)
  return sub(rest, 1, length), sub(rest, length + 2)
end

-- ---- reading ------------------------------------------------------------------------------------

local rows = {} -- by id; false for those that are not there
local jobs = {} -- those of them that were taken apart, which then are newer than their rows

local function many(command, key, words)
  for first = 1, #words, MOST_ARGS do
    call(command, key, unpack(words, first, min(first + MOST_ARGS - 1, #words)))
  end
end

local function values(key, fields)
  local found = {}
  for first = 1, #fields, MOST_ARGS do
    local last = min(first + MOST_ARGS - 1, #fields)
    local some = call("HMGET", key, unpack(fields, first, last))
    for n = first, last do found[n] = some[n - first + 1] end
  end
  return found
end

-- Rows that cannot be read are as good as not there: those that were set aside, and those that are to
-- be. Their ids stay taken.
local odd, is_taken, is_any_aside = {}, {}, nil

local function is_sound(row)
  if #row < 123 then return false end
  local stage, status = byte(row, 1, 2)
  local why, worker = unpack_from(">I4I4", row, 72)
  local queue, executor, unique, key = unpack_from(">I4I4I4I4", row, 108)
  local length = 123 + why + worker + queue + executor + unique + key
  return stage <= SIGNALLING and status <= CANCELLED and #row == length
end

local function load_jobs(ids)
  local wanted = {}
  for _, id in ipairs(ids) do
    if rows[id] == nil then
      rows[id] = false
      wanted[#wanted + 1] = id
    end
  end
  if #wanted == 0 then return end
  local found = values(JOB, wanted)
  if is_any_aside == nil then is_any_aside = call("EXISTS", UNREADABLE) == 1 end
  local aside = is_any_aside and values(UNREADABLE, wanted) or {}
  for n, id in ipairs(wanted) do
    local row = found[n]
    is_taken[id] = row and true or nil
    if row and aside[n] then
      row = false
    elseif row and not is_sound(row) then
      odd[id], row = row, false
    end
    rows[id] = row
  end
end

local function job_of(id)
  local job = jobs[id]
  if job == nil then
    if rows[id] == nil then load_jobs({id}) end
    job = rows[id] and parsed(id, rows[id])
    jobs[id] = job
  end
  return job
end

-- ---- what is to be written ----------------------------------------------------------------------

local changed, gone, written = {}, {}, {} -- by id: jobs, those that leave, and rows
local bodies, tales = {}, {} -- by id
local notes = {} -- by id, of rows that are set aside
local labels, unlabelled = {}, {} -- by id: what jobs are found by; and the tags of those that leave
local sets = {} -- by key: members and their scores, false for those that leave
local lanes = {} -- by key of a lane or group: where it is listed, and as what
local sums = {[COUNTS] = {}, [RUNNING] = {}, [KEY_RUNNING] = {}} -- what is added, by name
local holders = {} -- of unique keys: an id, or false
local takers = {} -- of unique keys with a rule: what is kept of who took each last, or false
local is_work, is_done = false, false -- which topics to notify
local flows, book -- opens the flows, where a script meets a step, and what it opened: ``steps.lua``

local function rank(key, member, score)
  local members = sets[key]
  if not members then
    members = {}
    sets[key] = members
  end
  members[member] = score
end

-- A score as text: for many members at once that is cheaper than a number for each.
local function exact(number) return string.format("%.17g", number) end

local function add_up(key, name, number)
  local found = sums[key]
  found[name] = (found[name] or 0) + number
end

local function running_of(key, where)
  where = where or RUNNING
  return tonumber(call("HGET", where, key) or 0) + (sums[where][key] or 0)
end

local function holder_of(key)
  if holders[key] == nil then return call("HGET", UNIQUE, key) end
  return holders[key]
end

local function write_hash(key, found)
  local set, unset = {}, {}
  for name, value in pairs(found) do
    if value then
      set[#set + 1] = name
      set[#set + 1] = value
    else
      unset[#unset + 1] = name
    end
  end
  many("HSET", key, set)
  many("HDEL", key, unset)
end

local function write_set(key, members)
  local set, unset = {}, {}
  for member, score in pairs(members) do
    if score then
      set[#set + 1] = score
      set[#set + 1] = member
    else
      unset[#unset + 1] = member
    end
  end
  many("ZADD", key, set)
  many("ZREM", key, unset)
end

local function write_sums(key, found)
  for name, number in pairs(found) do
    if number ~= 0 and call("HINCRBY", key, name, number) <= 0 then call("HDEL", key, name) end
  end
end

-- Jobs are found by their tags; a job that leaves is found by none. Nobody asks where no job has any.
local function write_labels()
  if next(unlabelled) ~= nil and call("EXISTS", LABELS) == 1 then
    local ids = {}
    for id in pairs(unlabelled) do ids[#ids + 1] = id end
    local found = values(LABELS, ids)
    for n, id in ipairs(ids) do
      for _, label in ipairs(found[n] and cmsgpack.unpack(found[n]) or {}) do
        call("ZREM", TAGGED .. label, unlabelled[id])
      end
    end
    many("HDEL", LABELS, ids)
  end
  for id, found in pairs(labels) do
    call("HSET", LABELS, id, cmsgpack.pack(found))
    for _, label in ipairs(found) do call("ZADD", TAGGED .. label, exact(jobs[id][SEQ]), jobs[id][TAG]) end
  end
end

-- A lane is there from now on or no more. Where those of paused queues stand apart, it is taken for open: a
-- claim that meets it finds out.
local function list_lane(lane, is_there)
  if is_there then
    if call("ZADD", LANES, 0, lane) == 1 and call("EXISTS", CLOSED_LANES) == 1 then
      call("ZADD", OPEN_LANES, 0, lane)
    end
  elseif call("ZREM", LANES, lane) == 1 and call("EXISTS", CLOSED_LANES) == 1 then
    call("ZREM", OPEN_LANES, lane)
    call("ZREM", CLOSED_LANES, lane)
    if call("EXISTS", CLOSED_LANES) == 0 then call("DEL", OPEN_LANES) end
  end
end

-- A lane has due jobs of its own, or limit keys that have some: those are listed first.
local function list_lanes()
  local due = {}
  for key, listed in pairs(lanes) do
    if listed[1] == LANES then
      due[key] = listed[2]
    elseif call("EXISTS", key) == 1 then
      call("ZADD", listed[1], 0, listed[2])
    else
      call("ZREM", listed[1], listed[2])
    end
  end
  for key, lane in pairs(due) do
    list_lane(lane, call("EXISTS", key) == 1 or call("EXISTS", DUE_KEYS .. lane) == 1)
  end
end

local function flush()
  for id, job in pairs(changed) do
    local row = row_of(job)
    rows[id], written[id] = row, row
  end
  write_hash(JOB, written) -- first: a server without memory refuses this, and nothing was written
  write_hash(BODY, bodies)
  write_hash(TALE, tales)
  write_hash(UNIQUE, holders)
  write_hash(UNREADABLE, notes)
  if next(takers) ~= nil then write_hash(TAKERS, takers) end
  if next(labels) ~= nil or next(unlabelled) ~= nil then write_labels() end
  if book then book.write() end
  for key, members in pairs(sets) do write_set(key, members) end
  for key, found in pairs(sums) do write_sums(key, found) end
  list_lanes()
  local ids = {}
  for id in pairs(gone) do ids[#ids + 1] = id end
  many("HDEL", JOB, ids)
  many("HDEL", BODY, ids)
  many("HDEL", TALE, ids)
  changed, gone, written, bodies, tales, sets, lanes, holders = {}, {}, {}, {}, {}, {}, {}, {}
  notes, labels, unlabelled, takers = {}, {}, {}, {}
  sums = {[COUNTS] = {}, [RUNNING] = {}, [KEY_RUNNING] = {}}
end

local function notify()
  if is_work then call("PUBLISH", channel .. "work", "") end
  if is_done then call("PUBLISH", channel .. "done", "") end
end

-- ---- answers ------------------------------------------------------------------------------------

-- Jobs as ``rows.py`` takes them apart: the lengths of bodies and tales, then rows and both of them.
local function shown(ids, with_tales)
  local lengths, sizes, found = {}, {}, {}
  local texts, told = values(BODY, ids), with_tales and values(TALE, ids) or {}
  for n, id in ipairs(ids) do
    texts[n] = texts[n] or "" -- missing: the caller cannot read that, and says so
    found[n], lengths[n] = rows[id], #texts[n]
    if with_tales then
      told[n] = told[n] or ""
      sizes[n] = #told[n]
    end
  end
  return lengths, sizes, concat(found), concat(texts), concat(told)
end
