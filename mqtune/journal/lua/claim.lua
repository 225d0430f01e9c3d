-- Claim an attempt: check that it is wanted and free, take the lease, append the start.
--
-- KEYS  1 meta  2 journal  3 trial  4 staged  5 leases  6 quotas
-- ARGV  1 channel  2 trial  3 attempt  4 worker  5 token, unique to this claim  6 lease in milliseconds  7 event
--       8 experiment
--
-- Returns {'granted', assignment, timestamp of the trial's last report or ''}; or {why not, '', ''} with why not one of
-- unknown (no such trial), superseded (a later attempt exists), taken (another claim holds it), ended, undriven (nobody
-- drives the experiment any more, and nothing may start meanwhile), quota (as many run as a quota allows; the attempt counts as staged
-- just now, so that its driver publishes it again after a while).
-- At most one claim of an attempt is ever granted; repeating it with its token grants it again without journaling twice.

local have = redis.call('HMGET', KEYS[3], 'attempt', 'state', 'token', 'assignment', 'timestamp')
if not have[1] then return {'unknown', '', ''} end
if have[1] ~= ARGV[3] then return {'superseded', '', ''} end
if have[2] == 'ended' then return {'ended', '', ''} end
if have[2] == 'running' and have[3] ~= ARGV[5] then return {'taken', '', ''} end
local now = now_ms()
local quotas, most = quotas_of(KEYS[6], ARGV[8])
if have[2] == 'staged' then
  if undriven(KEYS[1]) ~= '' then return {'undriven', '', ''} end
  for i, key in ipairs(quotas) do
    if redis.call('ZCOUNT', key, '(' .. now, '+inf') >= most[i] then
      redis.call('ZADD', KEYS[4], now, ARGV[2])
      return {'quota', '', ''}
    end
  end
  redis.call('HSET', KEYS[3], 'state', 'running', 'worker', ARGV[4], 'token', ARGV[5])
  redis.call('ZREM', KEYS[4], ARGV[2])
  -- Not before, as it frees memory: a full server would then begin the attempt.
  for _, key in ipairs(quotas) do redis.call('ZREMRANGEBYSCORE', key, '-inf', now) end
  append(KEYS[1], KEYS[2], ARGV[1], ARGV[7])
end
lease(KEYS[5], quotas, ARGV[8], { ARGV[2] }, now + ARGV[6])
return {'granted', have[4], have[5] or ''}
