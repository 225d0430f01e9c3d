-- Return which of the attempts that the driver considers under way are, and repair the bookkeeping of these.
--
-- KEYS  1 driver  2 journal  3 leases  4 staged  5… the trial of each attempt
-- ARGV  1 epoch  2 milliseconds of a lease that is put back, then for each attempt: trial, attempt
--
-- Returns {id of the newest entry or '', then 1 for each attempt that is under way, 0 for each that is not}; an error
-- STALEDRIVER when a later driver exists. An attempt that runs without a lease gets one, which its worker renews if there is
-- one; one that is staged and not listed is listed again. Repeating a call does no harm.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local found = { newest and newest[1] or '' }
for i = 5, #KEYS do
  local at = 3 + (i - 5) * 2
  local trial = ARGV[at]
  local have = redis.pcall('HMGET', KEYS[i], 'attempt', 'state')
  local is_under_way = 0
  if not have.err and have[1] == ARGV[at + 1] then
    if have[2] == 'running' then
      is_under_way = 1
      if not redis.call('ZSCORE', KEYS[3], trial) then redis.call('ZADD', KEYS[3], now_ms() + ARGV[2], trial) end
    elseif have[2] == 'staged' then
      is_under_way = 1
      if not redis.call('ZSCORE', KEYS[4], trial) then redis.call('ZADD', KEYS[4], now_ms(), trial) end
    end
  end
  found[#found + 1] = is_under_way
end
return found
