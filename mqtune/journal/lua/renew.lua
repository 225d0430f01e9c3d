-- Renew the leases of a worker's attempts of one experiment; the answer carries their orders.
--
-- KEYS  1 meta  2 leases  3 quotas  4… the trial of each attempt
-- ARGV  1 lease in milliseconds  2 experiment  then for each attempt: trial, attempt, token
--
-- Returns for each attempt: its orders (see order); 'undriven' in place of orders that let it go on, when nobody has driven the experiment
-- for too long and its attempts are to end; or 'fenced' when the attempt doesn't hold the lease. A lease that has expired is renewed
-- as long as its attempt was not ended as lost. Repeating a call does no harm.

also_when_full('ZREM', KEYS[2])
local answers, renewed = {}, {}
local ends = undriven(KEYS[1]) == 'stop'
for i = 4, #KEYS do
  local at, n = 3 + (i - 4) * 3, i - 3
  local have = redis.call('HMGET', KEYS[i], 'attempt', 'token', 'state', 'orders')
  if have[1] ~= ARGV[at + 1] or have[2] ~= ARGV[at + 2] or have[3] ~= 'running' then
    answers[n] = 'fenced'
  else
    renewed[#renewed + 1] = ARGV[at]
    answers[n] = ends and go_on(have[4]) and 'undriven' or have[4]
  end
end
lease(KEYS[2], quotas_of(KEYS[3], ARGV[2]), ARGV[2], renewed, now_ms() + ARGV[1])
return answers
