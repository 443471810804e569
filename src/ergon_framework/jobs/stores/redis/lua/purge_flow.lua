-- Let a flow that has ended go with the next prune. In: now, and the flow. Out: whether it goes.

if not flows().flow_of(args[2]) then return {"none"} end
if not flows().keep_no_longer(args[2]) then return {"no"} end
flush()
return {"done"}
