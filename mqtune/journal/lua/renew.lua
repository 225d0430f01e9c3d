-- Renew the leases of the attempts that a worker runs for one experiment; the answer carries the intents.
--
-- KEYS  1 leases  2… the trial of each attempt
-- ARGV  1 lease in milliseconds, then for each attempt: trial, attempt, token
--
-- Returns for each attempt: the intent ('' for run), or 'fenced' when it is not the one that holds the lease; a lease
-- that has run out but was not reaped yet is renewed. Repeating a call does no harm.

local answers = {}
local runs_out = now_ms() + ARGV[1]
for i = 2, #KEYS do
  local at = 1 + (i - 2) * 3
  local have = redis.call('HMGET', KEYS[i], 'attempt', 'token', 'state', 'intent')
  if have[1] ~= ARGV[at + 2] or have[2] ~= ARGV[at + 3] or have[3] ~= 'running' then
    answers[i - 1] = 'fenced'
  else
    redis.call('ZADD', KEYS[1], runs_out, ARGV[at + 1])
    answers[i - 1] = have[4]
  end
end
return answers
