-- Return which of the attempts that the driver considers under way are, and repair the bookkeeping of these.
--
-- KEYS  1 driver of the experiment, whose other keys have names that begin and are placed alike
-- ARGV  1 epoch  2 milliseconds of a lease that is put back, then for each attempt: trial, attempt
--
-- Returns {id of the newest entry or '', then 1 for each attempt that is under way, 0 for each that is not}; an error
-- STALEDRIVER when a later driver exists. An attempt that runs without a lease gets one, which its worker renews if there is
-- one; one that is staged and not listed is listed again. Repeating a call does no harm.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local prefix = string.sub(KEYS[1], 1, -7)
local leases, staged = prefix .. 'leases', prefix .. 'staged'
local newest = redis.call('XREVRANGE', prefix .. 'journal', '+', '-', 'COUNT', 1)[1]
local found = { newest and newest[1] or '' }
for at = 3, #ARGV, 2 do
  local trial = ARGV[at]
  local have = redis.pcall('HMGET', prefix .. 'trial:' .. trial, 'attempt', 'state')
  local is_under_way = 0
  if not have.err and have[1] == ARGV[at + 1] then
    if have[2] == 'running' then
      is_under_way = 1
      if not redis.call('ZSCORE', leases, trial) then redis.call('ZADD', leases, now_ms() + ARGV[2], trial) end
    elseif have[2] == 'staged' then
      is_under_way = 1
      if not redis.call('ZSCORE', staged, trial) then redis.call('ZADD', staged, now_ms(), trial) end
    end
  end
  found[#found + 1] = is_under_way
end
return found
