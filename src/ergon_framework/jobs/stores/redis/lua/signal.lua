-- Complete the step that waits for a signal, or keep its value for the first that will. In: now, the
-- flow, the name, and the value. Out: what became of the signal, and the step whose time limit is over,
-- with its row; nothing where there is no such flow.

if not flows().flow_of(args[2]) then return false end
local outcome, late = flows().signal(args[2], args[3], blob(args[4]))
notify()
return {outcome, late or "", late and rows[late] or ""}
