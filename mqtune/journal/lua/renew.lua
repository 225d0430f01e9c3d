-- Renew the leases of a worker's attempts of one experiment; the answer carries intents and requests to save.
--
-- KEYS  1 meta  2 leases  3 quotas  4… the trial of each attempt
-- ARGV  1 lease in milliseconds  2 experiment  3 the worker, or '' if that is not known  4 mark, unique to this renewal
--       then for each attempt: trial, attempt, token
--
-- Returns for each attempt: the intent; without one, 'undriven' when nobody has driven the experiment for too long and its
-- attempts are to end; else 'save:<n>', 'go:<sequence>' or 'go:<sequence>:<answer>', both separated by a space, or ''; or 'fenced' when
-- the attempt doesn't hold the lease. A lease that has expired but was not reaped yet is renewed. Repeating a call does no harm.
-- If all hold theirs, and that worker has claimed them, the mark stands for these answers until one of them changes.

also_when_full('ZREM', KEYS[2])
local answers, renewed = {}, {}
local are_its_own = ARGV[3] ~= ''
local ends = undriven(KEYS[1]) == 'stop'
for i = 4, #KEYS do
  local at, n = 4 + (i - 4) * 3, i - 3
  local have = redis.call('HMGET', KEYS[i], 'attempt', 'token', 'state', 'intent', 'saves', 'cleared', 'answer', 'worker')
  if have[1] ~= ARGV[at + 2] or have[2] ~= ARGV[at + 3] or have[3] ~= 'running' then
    answers[n] = 'fenced'
    are_its_own = false
  else
    renewed[#renewed + 1] = ARGV[at + 1]
    are_its_own = are_its_own and have[8] == ARGV[3]
    answers[n] = told(have[4], have[5])
    if have[4] == '' and ends then
      answers[n] = 'undriven'
    elseif have[4] == '' and have[6] ~= '0' then
      answers[n] = answers[n] .. (have[5] == '0' and '' or ' ') .. go(have[6], have[7])
    end
  end
end
lease(KEYS[2], quotas_of(KEYS[3], ARGV[2]), ARGV[2], renewed, now_ms() + ARGV[1])
if are_its_own and not ends then
  local relooks = redis.call('HGET', KEYS[1], 'relooks') or '0'
  redis.call('HSET', KEYS[1], 'renewed:' .. ARGV[3], ARGV[4] .. ' ' .. relooks)
end
return answers
