-- Taking joins of flows out of the store, and what is left to be done there.

local function strip(id)
  local targets = call("LRANGE", JOINS .. id, 0, -1)
  many("HDEL", JOIN, targets)
  many("HDEL", MEMBERS, targets)
  targets[#targets + 1] = id
  many("ZREM", WORK, targets)
  many("HDEL", WORK_KINDS, targets)
  call("DEL", JOINS .. id, PARKED .. id)
end
