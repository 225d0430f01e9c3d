-- The driver has decided on reports of trials in lockstep, or answers questions in them; the trials may go on. Each worker gets one
-- message of hints.
--
-- KEYS  1 driver  2 meta  3… the trial of each attempt
-- ARGV  1 epoch  2 what control channels start with  3 experiment, then for each attempt: trial, attempt, sequence number,
--       answer or ''
--
-- Returns 1; an error STALEDRIVER when a later driver exists. An attempt that doesn't run is passed over, and a sequence
-- number never goes back. Repeating a call does no harm; hints that were lost come again, and renew repeats the last.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local hints = {}
for i = 3, #KEYS do
  local at = 3 + (i - 3) * 4
  local have = redis.call('HMGET', KEYS[i], 'attempt', 'state', 'worker', 'cleared')
  if have[1] == ARGV[at + 2] and have[2] == 'running' then
    local sequence, answer = ARGV[at + 3], ARGV[at + 4]
    if tonumber(sequence) > number(have[4], 0) then
      redis.call('HSET', KEYS[i], 'cleared', sequence, 'answer', answer)
    end
    local worker = hints[have[3]] or {}
    worker[#worker + 1] = { ARGV[3], ARGV[at + 1], tonumber(ARGV[at + 2]), go(sequence, answer) }
    hints[have[3]] = worker
  end
end
for worker, found in pairs(hints) do
  look_again(KEYS[2], worker)
  hint(ARGV[2] .. worker, found)
end
return 1
