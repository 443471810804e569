-- Take flows out, whatever state they are in. In: now, and their ids. Their steps are jobs, which are
-- taken out by themselves.

for _, id in ipairs(args[2]) do
  local flow = call("HGET", FLOW, id)
  if flow then call("ZREM", FLOWS_IN .. cmsgpack.unpack(flow)[STANDING], id) end
  strip(id)
  call("HDEL", FLOW, id)
  call("HDEL", PLAN, id)
  call("ZREM", FLOWS, id)
  call("ZREM", FLOW_PURGING, id)
end
return 1
