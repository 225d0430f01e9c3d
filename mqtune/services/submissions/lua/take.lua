-- Claim a submission that waits, or that its worker has not renewed in time.
--
-- KEYS  1 submission  2 submissions  3 meta
-- ARGV  1 name  2 worker  3 token, unique to this call  4 milliseconds of the claim
--       5 milliseconds below which a lost run was short  6 number of short runs in a row that end it
--
-- Returns {number of the run, number of the last run before the submission, description, signature}; or {0, reason, '',
-- ''}. The reason is unknown (it does not exist), ended, taken (its worker renews it), or driven (the experiment of its
-- name has a driver: a user, or its last run, if only that worker was cut off).
--
-- At most one worker has it at a time. Repeating a call with its token claims it again without a new number.

local have = redis.call('HMGET', KEYS[1], 'state', 'token', 'run', 'before', 'description', 'signature', 'began', 'short', 'stop',
  'reason')
if not have[1] or have[1] == 'ended' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return {0, have[1] or 'unknown', '', ''}
end
local now, run, short = now_ms(), number(have[3], 0), number(have[8], 0)
if have[1] == 'running' then
  if have[2] == ARGV[3] then return {run, number(have[4], 0), have[5], have[6]} end
  local kept_until = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or '0')
  if kept_until > now then return {0, 'taken', '', ''} end
  short = kept_until - number(have[7], 0) < tonumber(ARGV[5]) and short + 1 or 0
end
local how, reason = '', ''
if have[9] then
  how, reason = 'stopped', have[9]
elseif short >= tonumber(ARGV[6]) then
  how, reason = 'failed', 'it was lost ' .. short .. ' times in a row soon after it began'
  if (have[10] or '') ~= '' then reason = reason .. ', at last as ' .. have[10] end
end
if how ~= '' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HSET', KEYS[1], 'state', 'ended', 'how', how, 'reason', reason, 'code', '', 'ended_at', now, 'token', '')
  return {0, 'ended', '', ''}
end
if number(redis.call('HGET', KEYS[3], 'driver_until'), 0) > now then return {0, 'driven', '', ''} end
redis.call('HDEL', KEYS[1], 'refused', 'refusal')
redis.call('HSET', KEYS[1], 'state', 'running', 'worker', ARGV[2], 'token', ARGV[3], 'began', now, 'run', run + 1, 'short', short)
redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[1])
return {run + 1, number(have[4], 0), have[5], have[6]}
