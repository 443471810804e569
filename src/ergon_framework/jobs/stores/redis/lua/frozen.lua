-- Change nothing in a store that was moved. Stands before every script that works with jobs.

do
  local place = redis.call("GET", BAR)
  if place then return redis.error_reply("ERGONMOVED " .. place) end
end
