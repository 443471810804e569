-- Apply what happened, then claim. In: now, settlements, and what a worker asks, or nothing.

local ids, answers = {}, {}
for n, settlement in ipairs(args[2]) do ids[n] = settlement[1] end
load_jobs(ids)
for n, settlement in ipairs(args[2]) do answers[n] = apply(settlement) end
flush()
wake_freed()

local is_left, last_turns = false, {}
if args[3] then
  is_left = claim(args[3])
  for executor, queue in pairs(turns) do
    last_turns[#last_turns + 1] = executor
    last_turns[#last_turns + 1] = queue
  end
end
notify()

local late = {}
for n, id in ipairs(outdated) do late[n] = rows[id] end
local lengths, _, found, texts = shown(claimed)
local head = {answers, next_at < FOREVER and next_at, is_left, last_turns, claimed, lengths, outdated}
return {cmsgpack.pack(head), found, texts, concat(late)}
