-- End an attempt that the driver considers under way, and that is not: its hash, or the entry that ended it, was deleted or
-- evicted.
--
-- KEYS  1 driver  2 meta  3 journal  4 trial  5 leases  6 staged
-- ARGV  1 channel  2 epoch  3 trial  4 attempt  5 timestamp of the trial's last report  6 event  7 the entry that the driver read last
--
-- Returns 1 when this driver has ended it; 0 when it is under way, or a later attempt was staged; an error STALEDRIVER when a
-- later driver exists. From here on the attempt has ended, and nobody's claim of it counts. Repeating a call does no harm.
-- A later attempt has an entry of its own: one of which the driver has read none, though it has read all, is nonsense in the hash.

local refused = stale(KEYS[1], ARGV[2])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local have = redis.pcall('HMGET', KEYS[4], 'attempt', 'state', 'ended_by')
if have.err then have = {} end
if number(have[1], 0) > tonumber(ARGV[4]) then
  local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
  if not newest or newest[1] ~= ARGV[7] then return 0 end
end
local ended_by = ARGV[2] .. ':void'
if have[1] == ARGV[4] then
  if have[2] == 'running' or have[2] == 'staged' then return 0 end
  if have[3] == ended_by then return 1 end
end
redis.call('DEL', KEYS[4])
blank(KEYS[4], 'attempt', ARGV[4], 'state', 'ended', 'timestamp', ARGV[5], 'ended_by', ended_by)
retire(KEYS[4])
redis.call('ZREM', KEYS[5], ARGV[3])
redis.call('ZREM', KEYS[6], ARGV[3])
append(KEYS[2], KEYS[3], ARGV[1], ARGV[6])
return 1
