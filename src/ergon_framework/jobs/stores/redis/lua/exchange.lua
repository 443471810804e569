-- Apply what happened, then claim. In: now, settlements, and what a worker asks, or nothing. What the
-- ends of steps bring about is done before the claim: who was released may be claimed at once.

local ids, answers = {}, {}
for n, settlement in ipairs(args[2]) do ids[n] = settlement[1] end
load_jobs(ids)
local steps = {}
for _, id in ipairs(ids) do
  if rows[id] and byte(rows[id], 3) >= IS_STEP then steps[#steps + 1] = id end
end
if #steps > 0 then flows().load(steps) end
for n, settlement in ipairs(args[2]) do answers[n] = apply(settlement) end
flush()
wake_freed()
if book then
  book.finish()
  for id in pairs(jobs) do jobs[id] = nil end -- as their rows are now: most claims need no more
end

local is_left, last_turns = false, {}
if args[3] then
  if call("EXISTS", WORK) == 1 then
    flows().do_slice()
    is_sweeping = call("EXISTS", WORK) == 1
  end
  is_left = open_claim()(args[3])
  if is_sweeping then next_at = now end -- the next claim goes on with it
  for executor, queue in pairs(turns) do
    last_turns[#last_turns + 1] = executor
    last_turns[#last_turns + 1] = queue
  end
end
notify()

local late = {}
for n, id in ipairs(outdated) do late[n] = rows[id] end
local lengths, _, found, texts = shown(claimed)
local head = {
  answers, next_at < FOREVER and next_at, is_left, last_turns, claimed, lengths, outdated,
  expires_at < FOREVER and expires_at, handler_lanes,
}
return {cmsgpack.pack(head), found, texts, concat(late)}
