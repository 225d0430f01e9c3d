-- Claim an attempt, or one of its tasks: check that it is wanted and free, take the lease, append the start.
--
-- KEYS  1 meta  2 journal  3 task: the trial or a further task  4 staged  5 leases  6 quotas  7 requests
-- ARGV  1 channel  2 name of the task  3 attempt  4 worker  5 token, unique to this claim
--       6 lease in milliseconds; 0 to return a task  7 event  8 experiment  9 address of this task
--
-- Returns {'granted', assignment, timestamp of the trial's last report or '', address of task 0 or ''}; or
-- {reason, '', '', ''} with one of these reasons:
--   unknown     no such trial
--   superseded  a later attempt exists
--   taken       another claim holds it
--   ended       it has ended
--   revoked     its revocation was requested before it began
--   undriven    the experiment has no driver, and may start nothing without one
--   quota       a quota is used up; the attempt counts as staged just now, so its driver publishes it again later
--   beside      the worker has another task of the attempt
--   after       an attempt with an equal plan was staged before, and lacks a task
--   reserved    this claim reserves one of several tasks, for the lease time since its last repetition
--   left        this claim has returned one of several tasks
--
-- The claim of the last task starts all tasks and appends their starts in order. The other tasks are granted when they
-- repeat their claims. Usually an attempt has one task.
--
-- At most one claim of a task is ever granted. Repeating it with its token grants it again without journaling twice,
-- also on a full server.

-- The most earlier staged tasks that a claim checks.
local LOOK = 200

local function is_revoked(trial, attempt)
  return redis.call('HEXISTS', KEYS[7], 'revoke/' .. trial .. '/' .. attempt) == 1
end

-- Whether an attempt with an equal plan was staged before and lacks a task that this worker could take. So they get
-- their tasks in the order of staging, and never block one another.
local function comes_after(prefix, trial, plan, now)
  local seen = {}
  for _, name in ipairs(redis.call('ZRANGE', KEYS[4], 0, LOOK - 1)) do
    local other = string.match(name, '^[^~]*')
    if other == trial then return false end
    local its = seen[other] and {} or redis.call('HMGET', prefix .. other, 'gang', 'attempt')
    if its[1] == plan and not is_revoked(other, its[2] or '') then
      local lacks, is_here = false, false
      local names, are_apart = tasks_of(other, plan)
      for _, task in ipairs(names) do
        local have = redis.call('HMGET', prefix .. task, 'state', 'worker', 'token', 'seated_until')
        local is_taken = have[3] and have[3] ~= '' and number(have[4], 0) > now
        lacks = lacks or (have[1] == 'staged' and not is_taken)
        is_here = is_here or (is_taken and have[2] == ARGV[4])
      end
      if lacks and not (are_apart and is_here) then return true end
    end
    seen[other] = true
  end
  return false
end

local have = redis.call('HMGET', KEYS[3], 'attempt', 'state', 'token', 'assignment', 'timestamp', 'gang', 'seated_until')
if not have[1] then return {'unknown', '', '', ''} end
if have[1] ~= ARGV[3] then return {'superseded', '', '', ''} end
if have[2] == 'ended' then return {'ended', '', '', ''} end
if have[2] == 'running' and have[3] ~= ARGV[5] then return {'taken', '', '', ''} end
local trial, prefix, now = string.match(ARGV[2], '^[^~]*'), string.sub(KEYS[3], 1, -1 - #ARGV[2]), now_ms()
local names, are_apart = tasks_of(trial, have[6])
local quotas, most = quotas_of(KEYS[6], ARGV[8])
if have[2] == 'staged' then
  local is_mine, is_free = have[3] == ARGV[5], not have[3] or have[3] == '' or number(have[7], 0) <= now
  if #names > 1 and ARGV[6] == '0' then
    also_when_full('ZREM', KEYS[4])
    if is_mine then redis.call('HSET', KEYS[3], 'token', '', 'worker', '') end
    return {'left', '', '', ''}
  end
  if is_revoked(trial, ARGV[3]) then return {'revoked', '', '', ''} end
  if undriven(KEYS[1]) ~= '' then return {'undriven', '', '', ''} end
  if #names > 1 and not is_mine and not is_free then return {'taken', '', '', ''} end
  local starts, lacks = { [ARGV[2]] = ARGV[7] }, false
  for _, name in ipairs(names) do
    if name ~= ARGV[2] then
      local task = redis.call('HMGET', prefix .. name, 'attempt', 'state', 'worker', 'token', 'seated_until', 'start')
      local is_taken = task[1] == ARGV[3] and task[2] == 'staged' and task[4] ~= '' and number(task[5], 0) > now
      if is_taken and are_apart and task[3] == ARGV[4] then return {'beside', '', '', ''} end
      starts[name], lacks = task[6], lacks or not is_taken
    end
  end
  if #names > 1 and not is_mine and comes_after(prefix, trial, have[6], now) then return {'after', '', '', ''} end
  for i, key in ipairs(quotas) do
    if redis.call('ZCOUNT', key, '(' .. now, '+inf') + #names > most[i] then
      redis.call('ZADD', KEYS[4], now, ARGV[2])
      if is_mine then redis.call('HSET', KEYS[3], 'token', '', 'worker', '') end
      return {'quota', '', '', ''}
    end
  end
  local state = lacks and 'staged' or 'running'
  redis.call('HSET', KEYS[3], 'state', state, 'worker', ARGV[4], 'token', ARGV[5])
  if #names > 1 then
    redis.call('HSET', KEYS[3], 'seated_until', now + ARGV[6], 'start', ARGV[7], 'address', ARGV[9])
  end
  if lacks then return {'reserved', '', '', ''} end
  -- Not before the first HSET: this frees memory, so a full server would no longer refuse to start the attempt.
  for _, key in ipairs(quotas) do redis.call('ZREMRANGEBYSCORE', key, '-inf', now) end
  for _, name in ipairs(names) do
    if name ~= ARGV[2] then redis.call('HSET', prefix .. name, 'state', 'running') end
    redis.call('ZREM', KEYS[4], name)
    append(KEYS[1], KEYS[2], ARGV[1], starts[name])
  end
  lease(KEYS[5], quotas, ARGV[8], names, now + ARGV[6])
elseif ARGV[6] ~= '0' then
  -- The worker renews no lease before it has this answer. The first answer may have been lost, or the claim of the last
  -- task has started this one. A full server that refused the claim would let the lease expire.
  also_when_full('ZREM', KEYS[4])
  lease(KEYS[5], quotas, ARGV[8], { ARGV[2] }, now + ARGV[6])
end
return {'granted', have[4], have[5] or '', #names > 1 and redis.call('HGET', prefix .. trial, 'address') or ''}
