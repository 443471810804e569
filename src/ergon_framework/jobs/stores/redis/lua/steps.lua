-- Steps of flows: what the end of one counts at, who is released, and what is swept. What becomes of
-- a flow is decided in ``flow.lua``; the order of the calls is that of ``stores/flow_settlement.py``.
--
-- A step has a place beside its row: its flow, the join at which it waits, those at which its end
-- counts, how long it waits, its signal, and the value of a signal that came early. Most scripts meet
-- no step: all of this is made when the first one is met.

local is_sweeping = false -- whether something is left to be done in slices: a flow may be stopping

local function open_book()
  local machine = flow_machine()
  local book = {may = machine.may, is_stopping = machine.is_stopping}
  local places, is_placed = {}, {} -- by id; and those that are to be written
  local flow_rows, was, is_changed = {}, {}, {} -- by id; how each stood, and those to be written
  local left, is_counted = {}, {} -- by join: predecessors that are left; and those to be written
  local counts, sweeps = {}, {} -- what is still to be done: by join and by flow
  local answered = {} -- steps that came back, and whose signals had come before they were cancelled

  -- ---- reading ----------------------------------------------------------------------------------

  local function unpacked(text)
    if not text then return false end
    local is_read, found = pcall(cmsgpack.unpack, text)
    return is_read and type(found) == "table" and found
  end

  -- The places of steps; false where one cannot be read.
  function book.load(ids)
    local wanted = {}
    for _, id in ipairs(ids) do
      if places[id] == nil then
        places[id] = false
        wanted[#wanted + 1] = id
      end
    end
    for n, text in ipairs(values(STEP, wanted)) do
      local found = unpacked(text)
      if found and type(found[FLOW_ID]) == "string" and type(found[FEEDS]) == "table" then
        places[wanted[n]] = found
      end
    end
  end

  local function place_of(id)
    if places[id] == nil then book.load({id}) end
    return places[id]
  end
  book.place_of = place_of

  local function flow_of(id)
    if flow_rows[id] == nil then
      local found = unpacked(call("HGET", FLOW, id))
      flow_rows[id] = found and #found >= FLOW_SEQ and found
      was[id] = flow_rows[id] and found[STANDING]
    end
    return flow_rows[id]
  end
  book.flow_of = flow_of

  local function flow_named(join) return match(join, "^(.*):[^:]*$") end

  local function left_at(join)
    if left[join] == nil then left[join] = tonumber(call("HGET", JOIN, join) or "") or false end
    return left[join] or 0 -- whoever waits at a join that was lost may go
  end

  -- ---- writing ----------------------------------------------------------------------------------

  local function write_flow(id)
    local flow = flow_rows[id]
    flow[MOVED_AT] = now
    local is_final = machine.is_final[flow[STANDING]]
    local purge_at = is_final and flow[KEEP] and now + flow[KEEP] or false
    if purge_at then
      call("ZADD", FLOW_PURGING, exact(purge_at), id)
    elseif flow[FLOW_PURGE_AT] then
      call("ZREM", FLOW_PURGING, id)
    end
    flow[FLOW_PURGE_AT] = purge_at
    if was[id] ~= flow[STANDING] then
      if was[id] then call("ZREM", FLOWS_IN .. was[id], id) end
      call("ZADD", FLOWS_IN .. flow[STANDING], exact(flow[FLOW_SEQ]), id)
      was[id] = flow[STANDING]
    end
    return cmsgpack.pack(flow)
  end

  -- With every ``flush``.
  function book.write()
    local written_places, written_flows, written_joins = {}, {}, {}
    for id in pairs(is_placed) do
      written_places[id] = places[id] and cmsgpack.pack(places[id])
    end
    for id in pairs(is_changed) do written_flows[id] = write_flow(id) end
    for join in pairs(is_counted) do written_joins[join] = exact(left[join]) end
    write_hash(STEP, written_places)
    write_hash(FLOW, written_flows)
    write_hash(JOIN, written_joins)
    is_placed, is_changed, is_counted = {}, {}, {}
  end

  local function put_place(id, place)
    places[id], is_placed[id] = place, true
  end

  local function put_work(target, kind, after)
    call("HSET", WORK_KINDS, target, cmsgpack.pack({kind, after}))
    call("ZADD", WORK, exact(now), target)
  end

  local function drop_work(target)
    if call("ZREM", WORK, target) == 1 then call("HDEL", WORK_KINDS, target) end
  end

  -- ---- what happens to a flow -------------------------------------------------------------------

  local function accept(flow_id, is_counting, sweep, feeds)
    is_changed[flow_id] = true
    if is_counting then
      for _, join in ipairs(feeds) do counts[join] = (counts[join] or 0) + 1 end
    end
    if sweep then sweeps[flow_id] = sweep end
  end

  local function ended(place, status, keep)
    local flow_id = place[FLOW_ID]
    local flow = flow_of(flow_id)
    local is_counting, sweep = machine.step_ended(flow, status, #place[FEEDS] == 0)
    flow[KEEP] = flow[KEEP] and keep and max(flow[KEEP], keep) or false
    accept(flow_id, is_counting, sweep, place[FEEDS])
    return is_counting
  end

  -- A step waits for its signal from now on.
  local function expect_signal(job, place)
    job[STAGE] = SIGNALLING
    job[EXPIRES_AT] = place[DELAY] and now + place[DELAY] or FOREVER
  end

  -- Whether a step may be moved to this status. One whose flow cannot be read is set aside.
  function book.may_move(job, status)
    local place = place_of(job[ID])
    local flow = place and flow_of(place[FLOW_ID])
    if not flow then
      stand(job, false)
      let_go(job)
      note(job[ID], job[SEQ], job[QUEUE], job[STATUS], "its place in a flow cannot be read")
      return false
    end
    if is_final(status) then return machine.may(flow, "step_ended") end
    if is_final(job[STATUS]) then return machine.may(flow, "step_returned") end
    return job[STAGE] < JOINING -- nobody can hurry what a step waits for
  end

  -- A step was moved; ``keep`` is how long its result is wanted.
  function book.moved(job, before, keep)
    local place = place_of(job[ID])
    if is_final(job[STATUS]) then
      job[PURGE_AT] = FOREVER -- it is kept as long as its flow
      if ended(place, job[STATUS], keep) then place[FEEDS] = {} end
      -- Any other end keeps a signal that came early: the step may be retried.
      if job[STATUS] == COMPLETED then place[EARLY] = false end
      put_place(job[ID], place)
    elseif is_final(before) then
      machine.step_returned(flow_of(place[FLOW_ID]), before, #place[FEEDS] == 0)
      accept(place[FLOW_ID])
      if place[JOIN_AT] and left_at(place[JOIN_AT]) > 0 then
        job[STAGE], job[RUN_AT] = JOINING, job[CREATED_AT]
      else
        place[JOIN_AT] = false
        put_place(job[ID], place)
        if place[SIGNAL] then expect_signal(job, place) end
        if place[SIGNAL] and place[EARLY] then answered[#answered + 1] = job end
      end
    end
  end

  -- The same for a running step that has completed, of which nothing special is known: false where
  -- that does not do.
  function book.completed(id, keep)
    local place = place_of(id)
    local flow = place and flow_of(place[FLOW_ID])
    if not flow or not machine.may(flow, "step_ended") then return false end
    ended(place, COMPLETED, keep)
    place[FEEDS] = {}
    put_place(id, place)
    return true
  end

  function book.is_stopped(job)
    local place = place_of(job[ID])
    local flow = place and flow_of(place[FLOW_ID])
    return flow and machine.is_stopping[flow[STANDING]]
  end

  -- What callers of the store see of its place.
  function book.shown(id)
    local place = place_of(id)
    return place and {unpack(place, 1, EARLY)}
  end

  -- ---- where a step stands ----------------------------------------------------------------------

  -- One that waits for others or for its signal; in any other stage it stands where jobs do.
  function book.line_up(job, is_there)
    local place = place_of(job[ID])
    if not place then return end
    local score = is_there and job[SEQ]
    if job[STAGE] == JOINING and place[JOIN_AT] then
      rank(WAITING .. place[JOIN_AT], job[TAG], score)
    end
    if place[SIGNAL] then
      rank(SIGNALS .. named(place[FLOW_ID]) .. place[SIGNAL], job[TAG], score)
    end
  end

  -- It comes with its place, as another store had it.
  function book.take_in(job, place)
    put_place(job[ID], place)
    rank(STEPS .. place[FLOW_ID], job[TAG], job[SEQ])
  end

  -- Nothing is left of a signal that came early.
  function book.erase(id)
    local place = place_of(id)
    if place and place[EARLY] then
      place[EARLY] = false
      put_place(id, place)
    end
  end

  -- It leaves the store.
  function book.forget(job)
    local place = place_of(job[ID])
    if place then rank(STEPS .. place[FLOW_ID], job[TAG], false) end
    put_place(job[ID], false)
  end

  -- ---- moves that the store makes by itself: those of core/job.py -------------------------------

  local function two(number) return string.format("%02d", number) end

  local instant -- this one as text

  local function told_at()
    if instant then return instant end
    local whole = floor(now)
    local micros = floor((now - whole) * 1000000 + 0.5)
    if micros == 1000000 then whole, micros = whole + 1, 0 end
    local days, rest = floor(whole / 86400), whole % 86400
    -- Years are counted from March, so that the leap day is the last day of its year.
    local shifted = days + 719468
    local era = floor(shifted / 146097)
    local day = shifted - era * 146097
    local year = floor((day - floor(day / 1460) + floor(day / 36524) - floor(day / 146096)) / 365)
    local of_year = day - (365 * year + floor(year / 4) - floor(year / 100))
    local month = floor((5 * of_year + 2) / 153)
    local of_month = of_year - floor((153 * month + 2) / 5) + 1
    local number = month < 10 and month + 3 or month - 9
    local full = year + era * 400 + (number <= 2 and 1 or 0)
    instant = string.format("%04d-", full) .. two(number) .. "-" .. two(of_month)
      .. "T" .. two(floor(rest / 3600)) .. ":" .. two(floor(rest / 60) % 60) .. ":" .. two(rest % 60)
      .. (micros > 0 and string.format(".%06d", micros) or "") .. "Z"
    return instant
  end

  local function tale_for(job, event, status, attempts, why, result)
    local entry = string.format(
      '{"at":"%s","event":"%s","status":"%s","attempt":%d,"delivery":%d%s}',
      told_at(), event, status, attempts, job[DELIVERIES], why and ',"why":"' .. why .. '"' or ""
    )
    return pack(">I4I4B", #entry, 0, result and 1 or 0) .. entry .. (result or "")
  end

  local spans -- how long cancelled jobs are kept: of all queues, and of those that have their own

  local function kept_for(job)
    spans = spans or cmsgpack.unpack(ARGV[3])
    return spans[2][job[QUEUE]] or spans[1]
  end

  local function cancel(job)
    if not book.may_move(job, CANCELLED) then return end
    local tale = tale_for(job, "cancelled", "cancelled", job[ATTEMPTS], CANCELLED_BY_FLOW)
    move(job, CANCELLED, job[ATTEMPTS], job[EXCUSED], 0, kept_for(job), CANCELLED_BY_FLOW, tale)
  end
  book.cancel = cancel

  local function bring_back(job)
    local key = job[UNIQUE_KEY]
    local is_held = key ~= "" and (holder_of(key) or is_key_waited_with(job))
    if is_held or not book.may_move(job, PENDING) then return end
    move(job, PENDING, 0, 0, IS_RESET, 0, "", tale_for(job, "requeued", "pending", 0))
  end

  local function complete_signal(job, value)
    if not book.may_move(job, COMPLETED) then return end
    local tale = tale_for(job, "signalled", "completed", job[ATTEMPTS], nil, value)
    move(job, COMPLETED, job[ATTEMPTS], job[EXCUSED], 0, 0, "", tale)
  end

  -- ---- releases ---------------------------------------------------------------------------------

  local function ids_of(tags)
    local ids = {}
    for n, tag in ipairs(tags) do ids[n] = id_in_tag(tag) end
    load_jobs(ids)
    book.load(ids)
    return ids
  end

  local function let_start(job, place)
    line_up(job, false)
    place[JOIN_AT] = false
    put_place(job[ID], place)
    if place[SIGNAL] then
      job[RUN_AT] = now
      expect_signal(job, place)
    else
      -- A due time that nobody asked for is when it was added, and must not keep it where the clock ran
      -- ahead then.
      local asked = job[RUN_AT] > job[CREATED_AT] and job[RUN_AT] or now
      job[RUN_AT] = max(asked, now + (place[DELAY] or 0))
      job[STAGE] = job[RUN_AT] <= now and WAITS or LATER
    end
    job[CHANGED_AT] = now
    line_up(job, true)
    changed[job[ID]] = job
  end

  -- Those of open joins at which steps may go: not of flows that stop, whose joins are noted instead.
  local function going(joins)
    local found = {}
    for _, join in ipairs(joins) do
      local flow_id = flow_named(join)
      local flow = flow_of(flow_id)
      if flow and machine.is_stopping[flow[STANDING]] then
        -- Its steps stay where they are: the sweep cancels them there, unless the flow comes back.
        call("SADD", PARKED .. flow_id, join)
      elseif flow then
        found[#found + 1] = join
      end
    end
    return found
  end

  -- Let the steps go that wait at open joins, the first slice of each. All of them are read together:
  -- where many chains go on, each has a join of its own. ``is_noted``: they are noted as work.
  local function release_all(joins, is_noted)
    local tags, ids, early = {}, {}, {}
    flush()
    for _, join in ipairs(joins) do
      tags[join] = call("ZRANGE", WAITING .. join, 0, MOST_SWEPT - 1)
      for _, tag in ipairs(tags[join]) do ids[#ids + 1] = id_in_tag(tag) end
    end
    load_jobs(ids)
    book.load(ids)
    for _, join in ipairs(joins) do
      for _, tag in ipairs(tags[join]) do
        local id = id_in_tag(tag)
        local job, place = job_of(id), places[id]
        if job and place and job[STAGE] == JOINING then
          let_start(job, place)
          if place[SIGNAL] and place[EARLY] then early[#early + 1] = job end
        else
          drop_odd(id, WAITING .. join, tag, tag)
        end
        is_work = true
      end
      if #tags[join] == MOST_SWEPT then
        put_work(join, "release", 0)
      elseif is_noted then
        drop_work(join)
      end
    end
    for _, job in ipairs(early) do complete_signal(job, places[job[ID]][EARLY]) end
  end

  -- The same for one join, of which some may have been released before.
  local function release(join)
    local found = going({join})
    if #found > 0 then release_all(found, true) else drop_work(join) end
  end
  book.release = release

  local function load_joins(names)
    local wanted = {}
    for _, join in ipairs(names) do
      if left[join] == nil then wanted[#wanted + 1] = join end
    end
    for n, number in ipairs(values(JOIN, wanted)) do
      left[wanted[n]] = tonumber(number or "") or false
    end
  end

  local function count_at(found)
    local names, opened = {}, {}
    for join in pairs(found) do names[#names + 1] = join end
    table.sort(names)
    load_joins(names)
    for _, join in ipairs(names) do
      local number = left_at(join) - found[join]
      if left[join] then
        left[join], is_counted[join] = number, true
        if number == 0 then opened[#opened + 1] = join end
      end
    end
    if #opened == 0 then return end
    release_all(going(opened), false) -- a join opens once: nothing is noted as left at it yet
  end

  -- ---- sweeps -----------------------------------------------------------------------------------

  -- Go through the steps of a flow in the order of adding; ``visit`` tells whether one was changed.
  -- Answers how far that came, and whether it was all.
  local function go_through(flow_id, after, visit)
    local changes = 0
    for _ = 1, MOST_PAGES do
      flush()
      local tags = call(
        "ZRANGEBYSCORE", STEPS .. flow_id, "(" .. exact(after), "+inf", "LIMIT", 0, MOST_SWEPT
      )
      for _, id in ipairs(ids_of(tags)) do
        local job = job_of(id)
        if job then
          after = job[SEQ]
          if visit(job, places[id]) then changes = changes + 1 end
        end
      end
      if #tags < MOST_SWEPT then return after, true end
      after = unpack_from(">I8", tags[#tags])
      if changes >= MOST_SWEPT then break end
    end
    return after, false
  end

  local function visit_waiting(job)
    if job[STAGE] <= ACTIVE then return false end
    cancel(job)
    return true
  end

  local function visit_ended(skips)
    local superseded = SUPERSEDED
    return function(job, place)
      if job[STATUS] ~= FAILED and job[STATUS] ~= CANCELLED then return false end
      -- Another job does its work with newer arguments: it must not run with the old ones.
      if not skips and superseded[job[WHY]] then return false end
      if not skips or job[WHY] == CANCELLED_BY_FLOW then
        bring_back(job)
      elseif place and #place[FEEDS] > 0 then
        local flow = flow_of(place[FLOW_ID])
        if not machine.may(flow, "step_skipped") then return true end
        local feeds = place[FEEDS]
        place[FEEDS] = {}
        put_place(job[ID], place)
        accept(place[FLOW_ID], machine.step_skipped(flow), nil, feeds)
      end
      return true
    end
  end

  local function sweep(flow_id, kind, after)
    local last, is_over
    if kind == SWEEP_CANCEL then
      last, is_over = go_through(flow_id, after, visit_waiting)
    else
      if after == 0 then
        local joins = call("SMEMBERS", PARKED .. flow_id)
        call("DEL", PARKED .. flow_id)
        for n, join in ipairs(joins) do
          if n <= MOST_OPENED then release(join) else put_work(join, "release", 0) end
        end
      end
      last, is_over = go_through(flow_id, after, visit_ended(kind == SWEEP_SKIP))
    end
    if sweeps[flow_id] then return end -- another one has begun in its place
    if not is_over then
      put_work(flow_id, kind, last)
      is_work = true
      return
    end
    drop_work(flow_id)
    local flow = flow_of(flow_id)
    if kind ~= SWEEP_CANCEL and flow and machine.may(flow, "sweep_ended") then
      accept(flow_id, machine.sweep_ended(flow))
    end
  end

  -- Do what the moves of steps bring about. After a ``flush``.
  function book.finish()
    while next(answered) ~= nil or next(counts) ~= nil or next(sweeps) ~= nil do
      if next(answered) ~= nil then
        local found = answered
        answered = {}
        for _, job in ipairs(found) do
          if job[STAGE] == SIGNALLING then complete_signal(job, places[job[ID]][EARLY]) end
        end
      elseif next(counts) ~= nil then
        local found = counts
        counts = {}
        count_at(found)
      else
        local flow_id, kind = next(sweeps)
        sweeps[flow_id] = nil
        sweep(flow_id, kind, 0)
      end
    end
    flush()
    wake_freed()
  end

  -- ---- adding -----------------------------------------------------------------------------------

  local function put_joins(flow_id, joins)
    local names, members = {}, {}
    for n, join in ipairs(joins) do
      names[n] = join[1]
      left[join[1]], is_counted[join[1]] = join[2], true
      members[join[1]] = join[3]
    end
    many("RPUSH", JOINS .. flow_id, names)
    write_hash(MEMBERS, members)
  end

  local function insert(flow_id, new, seq, at)
    local id, queue, executor, priority, delay, run_at, expires_at, limit_key, limit, body =
      unpack(new, 1, 10)
    local join, feeds, wait, signal = unpack(new, 11, 14)
    local due = run_at or at + delay
    local stage = due <= now and WAITS or LATER
    if join then
      stage, due = JOINING, run_at or at
      if not signal then wait = delay > 0 and delay end
    elseif signal then
      stage, expires_at = SIGNALLING, wait and at + wait
    end
    local job = {
      stage, PENDING, IS_STEP + (limit_key and HAS_KEY or 0), 0, 0, 0, 0,
      at, 0, 0, FOREVER, due, expires_at or FOREVER,
      0, 0, seq, limit, priority, at, 0, 0, 0, 0,
      queue, executor, "", limit_key or "", "", "", id, pack(">I8", seq) .. id,
    }
    jobs[id], changed[id], bodies[id] = job, job, body
    labels[id] = new[15] or nil
    put_place(id, {flow_id, join or false, feeds, wait or false, signal or false, false})
    rank(ALL, id, seq)
    rank(STEPS .. flow_id, job[TAG], seq)
    stand(job, true)
    is_work = true
    return job
  end

  -- Add new steps of a flow that is there, as at this instant. One whose id was taken meanwhile is
  -- cancelled as far as the flow is concerned, and all of them are if the flow stops.
  local function admit(flow_id, steps, at)
    local flow, ids, open = flow_of(flow_id), {}, {}
    for n, new in ipairs(steps) do ids[n] = new[1] end
    load_jobs(ids)
    local seq = call("INCRBY", LAST_SEQ, #steps) - #steps
    for n, new in ipairs(steps) do
      if rows[new[1]] or is_taken[new[1]] then
        local lost = {flow_id, false, new[12]}
        if machine.may(flow, "step_ended") then ended(lost, CANCELLED, 0) end
      else
        local job = insert(flow_id, new, seq + n, at)
        if new[11] and left_at(new[11]) == 0 then open[new[11]] = true end
        if machine.is_stopping[flow[STANDING]] then cancel(job) end
      end
    end
    flush()
    for join in pairs(open) do release(join) end
  end

  -- Add the next of the steps that were handed in beforehand; false: that was all.
  local function admit_next(flow_id, at)
    local chunk = unpacked(call("LPOP", STAGED .. flow_id))
    if not chunk then return false end
    if chunk[1] == "joins" then
      put_joins(flow_id, chunk[2])
      flush()
    else
      admit(flow_id, chunk[2], at)
    end
    return call("EXISTS", STAGED .. flow_id) == 1
  end

  -- The id of the work that is left when not all steps of a flow have been added yet.
  local function admission(flow_id) return flow_id .. ":admit" end

  local function adopt(job, flow_id, feeds)
    line_up(job, false)
    job[PURGE_AT] = FOREVER
    set_flag(job, IS_STEP, true)
    put_place(job[ID], {flow_id, false, feeds, false, false, false})
    rank(STEPS .. flow_id, job[TAG], job[SEQ])
    line_up(job, true)
    changed[job[ID]] = job
  end

  -- Let the end of a job count at a join; one that has ended is dealt with at once.
  local function follow(job, flow_id, join)
    local place = has(job, IS_STEP) and place_of(job[ID])
    if place then
      if is_final(job[STATUS]) and #place[FEEDS] == 0 then
        counts[join] = (counts[join] or 0) + 1
      else
        place[FEEDS][#place[FEEDS] + 1] = join
        put_place(job[ID], place)
      end
      return
    end
    local feeds, flow = {join}, flow_of(flow_id)
    if is_final(job[STATUS]) and machine.may(flow, "step_ended") then
      local is_counting, sweeping = machine.step_ended(flow, job[STATUS], false)
      accept(flow_id, is_counting, sweeping, feeds)
      if is_counting then feeds = {} end
    end
    adopt(job, flow_id, feeds)
  end

  -- Add a flow, or steps to one that is there. ``made``: its row if it is new, ``number``: its steps
  -- with those that are not handed in yet. Whatever stands in the way was looked for before.
  function book.add(flow_id, made, number, joins, steps, found)
    if made then
      made[FLOW_SEQ] = call("INCR", LAST_SEQ)
      flow_rows[flow_id] = made
      call("ZADD", FLOWS, made[FLOW_SEQ], flow_id)
    end
    for _, job in ipairs(found) do
      if not has(job, IS_STEP) then number = number + 1 end
    end
    accept(flow_id, machine.steps_added(flow_of(flow_id), number))
    put_joins(flow_id, joins)
    admit(flow_id, steps, now)
    for _, job in ipairs(found) do follow(job, flow_id, joins[1][1]) end
    if call("EXISTS", STAGED .. flow_id) == 1 then
      call("PERSIST", STAGED .. flow_id)
      put_work(admission(flow_id), "admit", now)
    end
    flush()
    book.finish()
  end

  -- ---- for claims, retention and operators ------------------------------------------------------

  -- Go on with something that is left; with what follows from it.
  function book.do_slice()
    local target = call("ZRANGE", WORK, 0, 0)[1]
    local found = target and unpacked(call("HGET", WORK_KINDS, target))
    if not found then
      if target then drop_work(target) end
      return
    end
    local kind, after = found[1], found[2]
    local is_sweep = kind ~= "release" and kind ~= "admit"
    local flow_id = is_sweep and target or flow_named(target)
    if not flow_of(flow_id) then
      drop_work(target)
    elseif kind == "release" then
      release(target)
    elseif is_sweep then
      sweep(flow_id, kind, after)
    elseif admit_next(flow_id, after) then
      put_work(target, kind, after) -- at the end of the line
      is_work = true
    else
      drop_work(target)
    end
    flush()
    book.finish()
  end

  -- More of the steps that were handed in beforehand; whether there are others.
  function book.admit_more(flow_id)
    local target = admission(flow_id)
    local found = unpacked(call("HGET", WORK_KINDS, target))
    local is_more = found and flow_of(flow_id) and admit_next(flow_id, found[2])
    if not is_more then drop_work(target) end
    flush()
    book.finish()
    return is_more
  end

  -- One more slice of what was decided, or of what was handed in; whether anything is left.
  function book.go_on(flow_id)
    local found = unpacked(call("HGET", WORK_KINDS, flow_id))
    if not found then return book.admit_more(flow_id) end
    sweep(flow_id, found[1], found[2])
    flush()
    book.finish()
    return call("HEXISTS", WORK_KINDS, flow_id) == 1
      or call("HEXISTS", WORK_KINDS, admission(flow_id)) == 1
  end

  -- Cancel, retry or skip.
  function book.decide(flow_id, event)
    accept(flow_id, machine[event](flow_of(flow_id)))
    book.finish()
  end

  -- Complete the step that waits for a signal, or keep its value for the first that will. Answers what
  -- became of the signal, and the id of the step whose time limit is over.
  function book.signal(flow_id, name, value)
    local tags = call("ZRANGE", SIGNALS .. named(flow_id) .. name, 0, -1)
    local in_time, late, later
    for _, id in ipairs(ids_of(tags)) do
      local job = places[id] and job_of(id)
      if not job then
        -- it cannot be read
      elseif job[STAGE] ~= SIGNALLING then
        later = later or job
      elseif job[EXPIRES_AT] <= now then
        late = late or job
      else
        in_time = in_time or job
      end
    end
    if not (in_time or late or later) then return "unknown" end
    if in_time then
      complete_signal(in_time, value)
    elseif late then
      return "too_late", late[ID]
    else
      local place = places[later[ID]]
      if place[EARLY] and place[EARLY] ~= value then return "signalled" end
      place[EARLY] = value
      put_place(later[ID], place)
    end
    flush()
    book.finish()
    return "taken"
  end

  -- A row that had been set aside is where it stood: its flow may have gone on meanwhile.
  function book.welcome(job)
    local place = place_of(job[ID])
    if not place then return end
    if job[STAGE] > ACTIVE and book.is_stopped(job) then
      cancel(job)
    elseif job[STAGE] == JOINING and place[JOIN_AT] and left_at(place[JOIN_AT]) == 0 then
      release(place[JOIN_AT])
    end
    book.finish()
  end

  -- The status of a row when it was set aside.
  function book.status_noted(text)
    local found = unpacked(text)
    return found and tonumber(found[3]) or PENDING
  end

  -- A row that had been set aside is discarded: its flow takes the step for cancelled.
  function book.lose(id, seq, status)
    local place = place_of(id)
    local flow = place and flow_of(place[FLOW_ID])
    if not place then return end
    local tag = pack(">I8", seq) .. id
    rank(STEPS .. place[FLOW_ID], tag, false)
    if place[JOIN_AT] then rank(WAITING .. place[JOIN_AT], tag, false) end
    if place[SIGNAL] then
      rank(SIGNALS .. named(place[FLOW_ID]) .. place[SIGNAL], tag, false)
    end
    put_place(id, false)
    if flow and not is_final(status) and machine.may(flow, "step_ended") then
      ended(place, CANCELLED, 0)
    end
    flush()
    book.finish()
  end

  -- ---- retention --------------------------------------------------------------------------------

  local function drop_flow(id, most)
    local joins = call("LRANGE", JOINS .. id, 0, most - 1)
    many("HDEL", JOIN, joins)
    many("HDEL", MEMBERS, joins)
    call("LTRIM", JOINS .. id, #joins, -1)
    if call("EXISTS", JOINS .. id) == 1 then return false end
    local flow = flow_of(id)
    if flow then call("ZREM", FLOWS_IN .. flow[STANDING], id) end
    call("HDEL", FLOW, id)
    call("HDEL", PLAN, id)
    call("ZREM", FLOWS, id)
    call("ZREM", FLOW_PURGING, id)
    call("DEL", PARKED .. id, STAGED .. id)
    drop_work(id)
    return true
  end

  -- A flow that has ended is kept for no time at all; whether it has ended.
  function book.keep_no_longer(id)
    local flow = flow_of(id)
    if not machine.is_final[flow[STANDING]] then return false end
    flow[KEEP], is_changed[id] = 0, true
    return true
  end

  -- Delete at most so many steps of a flow, and with fewer the flow itself; how many, and whether
  -- nothing is left of it.
  function book.purge_one(id, most, remove)
    local tags = call("ZRANGE", STEPS .. id, 0, most - 1)
    for n, step in ipairs(ids_of(tags)) do
      local job = job_of(step)
      if job then
        remove(job)
      else -- it was set aside, and goes with its flow
        rank(STEPS .. id, tags[n], false)
        rank(ALL, step, false)
        put_place(step, false)
        gone[step], notes[step], unlabelled[step] = true, false, tags[n]
      end
    end
    flush()
    return #tags, #tags < most and drop_flow(id, most)
  end

  -- Delete flows that were kept long enough, with their steps, of which at most so many; how many.
  function book.purge(most, remove)
    local purged = 0
    for _, id in ipairs(call("ZRANGEBYSCORE", FLOW_PURGING, "-inf", now, "LIMIT", 0, most)) do
      local number, is_gone = book.purge_one(id, most - purged, remove)
      purged = purged + number
      if not is_gone then break end
    end
    return purged
  end

  -- Whether a flow was kept long enough, and was not changed since it was read.
  function book.is_as_read(id, purge_at, changed_at)
    local flow = flow_of(id)
    if not flow or not flow[FLOW_PURGE_AT] or flow[FLOW_PURGE_AT] > now then return false end
    return flow[FLOW_PURGE_AT] == purge_at and flow[MOVED_AT] == changed_at
  end

  return book
end

function flows()
  if not book then book = open_book() end
  return book
end
