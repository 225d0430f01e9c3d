-- Delete keys of an experiment that is no longer on the server.
--
-- KEYS  1 driver  2 meta  3 journal  4 experiments  5… its keys
-- ARGV  1 name of the experiment
--
-- Returns the number of deleted keys: 0 if the experiment exists by now. A driver that begins takes its lock first,
-- which lists the experiment. Idempotent.

if redis.call('ZSCORE', KEYS[4], ARGV[1]) or redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) > 0 then return 0 end
local deleted = 0
for i = 5, #KEYS do deleted = deleted + redis.call('DEL', KEYS[i]) end
return deleted
