-- Store the data of a checkpoint in memory, before an event names it.
--
-- KEYS  1 trial  2 checkpoints
-- ARGV  1 attempt  2 token  3 checkpoint  4 data
--
-- Returns the attempt's orders; 'fenced' if the attempt does not hold the lease, and then stores nothing. A stored
-- checkpoint never changes. Idempotent.

local have = redis.call('HMGET', KEYS[1], 'attempt', 'token', 'state', 'orders')
if have[1] ~= ARGV[1] or have[2] ~= ARGV[2] or have[3] ~= 'running' then return 'fenced' end
redis.call('HSETNX', KEYS[2], ARGV[3], ARGV[4])
return have[4]
