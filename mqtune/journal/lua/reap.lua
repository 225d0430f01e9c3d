-- End an attempt whose lease has expired: its worker is gone, frozen or cut off.
--
-- KEYS  1 driver  2 meta  3 journal  4 trial  5 leases
-- ARGV  1 channel  2 epoch  3 trial  4 attempt  5 event
--
-- Returns 1 when this driver has ended it, 0 when the lease was renewed, or the attempt ended, in between; an error
-- STALEDRIVER when a later driver exists. From here on the worker's writes are refused. Repeating a call does no harm.

local refused = stale(KEYS[1], ARGV[2])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local have = redis.call('HMGET', KEYS[4], 'attempt', 'state', 'ended_by')
if have[1] ~= ARGV[4] then return 0 end
if have[2] == 'ended' then return have[3] == ARGV[2] and 1 or 0 end
local runs_out = redis.call('ZSCORE', KEYS[5], ARGV[3])
if have[2] ~= 'running' or (runs_out and tonumber(runs_out) > now_ms()) then return 0 end
redis.call('HSET', KEYS[4], 'state', 'ended', 'orders', '', 'ended_by', ARGV[2])
retire(KEYS[4])
redis.call('ZREM', KEYS[5], ARGV[3])
append(KEYS[2], KEYS[3], ARGV[1], ARGV[5])
return 1
