-- Renew the leases of a worker's attempts of several experiments, and return the attempts' orders.
--
-- KEYS  1 quotas  2… meta of each experiment, whose leases and trials share its prefix and slot
-- ARGV  1 lease in milliseconds  then for each experiment: number of attempts, and for each: trial, attempt, token
--
-- Returns for each experiment a list with an answer for each attempt: its orders (see order); 'undriven' instead of
-- orders to continue, if the experiment has had no driver for too long and its attempts have to end; or 'fenced' if the
-- attempt doesn't hold the lease. An expired lease is renewed unless its attempt was ended as lost. If an experiment's
-- keys are broken, its result is the error instead of a list; the other experiments' leases are renewed. Idempotent.

local function renewed(meta, from, to)
  local prefix, experiment = string.sub(meta, 1, -5), string.match(meta, '{(.*)}')
  also_when_full('ZREM', prefix .. 'leases')
  local answers, trials = {}, {}
  local ends = undriven(meta) == 'stop'
  for at = from, to, 3 do
    local have = redis.call('HMGET', prefix .. 'trial:' .. ARGV[at], 'attempt', 'token', 'state', 'orders')
    if have[1] ~= ARGV[at + 1] or have[2] ~= ARGV[at + 2] or have[3] ~= 'running' then
      answers[#answers + 1] = 'fenced'
    else
      trials[#trials + 1] = ARGV[at]
      answers[#answers + 1] = ends and go_on(have[4]) and 'undriven' or have[4]
    end
  end
  lease(prefix .. 'leases', quotas_of(KEYS[1], experiment), experiment, trials, now_ms() + ARGV[1])
  return answers
end

local found, at = {}, 2
for i = 2, #KEYS do
  local last = at + 3 * ARGV[at]
  local is_sound, answers = pcall(renewed, KEYS[i], at + 1, last)
  found[#found + 1] = is_sound and answers or (type(answers) == 'table' and answers.err or tostring(answers))
  at = last + 1
end
return found
