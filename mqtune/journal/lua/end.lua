-- End an attempt, or one of its tasks, and its lease, after its process group has ended. Called by its worker.
--
-- KEYS  1 meta  2 journal  3 task: the trial or a further task  4 leases  5 quotas
-- ARGV  1 channel  2 name of the task  3 attempt  4 token  5 event  6 experiment  7 number of its last report
--       8 cause: itself, failure or worker
--
-- Returns 'ended'; 'fenced' if the attempt does not hold the lease; or 'gap', without any change, if that report is
-- missing here. Idempotent.
--
-- An attempt ends with its last task, and one end is journaled. Usually it is task 0's. If another task failed,
-- or was returned by its worker, before task 0 ended, its end is journaled instead, because the other tasks end due to
-- it. A returned task counts before a failed one, because the loss of one task makes others fail. Once task 0 has
-- orders to end, failures of other tasks don't count. With such an end, or task 0's, the running tasks get orders: to
-- stop if the task ended by itself, and otherwise to hand back.

local have = redis.call('HMGET', KEYS[3], 'attempt', 'token', 'state', 'ended_by', 'sequence', 'gang')
if have[1] ~= ARGV[3] or have[2] ~= ARGV[4] or have[2] == '' then return 'fenced' end
if have[3] == 'ended' then return have[4] == ARGV[4] and 'ended' or 'fenced' end
if have[3] ~= 'running' then return 'fenced' end
if number(have[5], 0) < tonumber(ARGV[7]) then return 'gap' end
also_when_full('ZREM', KEYS[4])
redis.call('HSET', KEYS[3], 'state', 'ended', 'orders', '', 'ended_by', ARGV[4])
retire(KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[2])
for _, key in ipairs(quotas_of(KEYS[5], ARGV[6])) do
  redis.call('ZREM', key, ARGV[6] .. '/' .. ARGV[2])
end
local trial, prefix = string.match(ARGV[2], '^[^~]*'), string.sub(KEYS[3], 1, -1 - #ARGV[2])
local names = tasks_of(trial, have[6])
local event, is_over = ARGV[5], true
if #names > 1 then
  local as, by, told = unpack(redis.call('HMGET', prefix .. trial, 'ended_as', 'end', 'orders'))
  local is_first = not as or as == ''
  local counts = ARGV[2] == trial or ARGV[8] == 'worker' or (ARGV[8] == 'failure' and go_on(told))
  if (is_first and counts) or (as == 'failure' and ARGV[8] == 'worker') then
    redis.call('HSET', prefix .. trial, 'ended_as', ARGV[8], 'end', event)
  elseif not is_first then
    event = by
  end
  for _, name in ipairs(names) do
    local state, orders = unpack(redis.call('HMGET', prefix .. name, 'state', 'orders'))
    if state == 'running' then
      is_over = false
      if counts and go_on(orders) then
        redis.call('HSET', prefix .. name, 'orders', ARGV[8] == 'itself' and 'stop' or 'hand_back')
      end
    end
  end
end
if is_over then append(KEYS[1], KEYS[2], ARGV[1], event) end
return 'ended'
