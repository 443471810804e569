-- Cancel, retry or skip. In: now, the flow, and which of them. Out: how the flow stands.

local flow = flows().flow_of(args[2])
if not flow then return {"none"} end
if not flows().may(flow, args[3]) then return {"no"} end
flows().decide(args[2], args[3])
notify()
return {"done", cmsgpack.pack(flows().flow_of(args[2])), call("HGET", PLAN, args[2])}
