-- Delete keys of an experiment that the server has no more.
--
-- KEYS  1 driver  2 meta  3 journal  4 experiments  5… what is left of it
-- ARGV  1 name of the experiment
--
-- Returns how many were deleted; none when there is such an experiment by now: a driver that begins takes its lock first,
-- which names it among the experiments. Repeating it does no harm.

if redis.call('ZSCORE', KEYS[4], ARGV[1]) or redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) > 0 then return 0 end
local deleted = 0
for i = 5, #KEYS do deleted = deleted + redis.call('DEL', KEYS[i]) end
return deleted
