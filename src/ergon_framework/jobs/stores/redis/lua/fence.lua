-- Change nothing when another move has written its state since. Stands before every script of a move.
-- The last argument is the state that must be there: nothing, or a plus sign and the state.

do
  local state = redis.call("GET", MARK)
  if (state and "+" .. state or "-") ~= ARGV[#ARGV] then return "ergon: overtaken" end
end
