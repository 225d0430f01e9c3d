-- Journal and publish a batch of reports as one entry; the answer carries what the driver wants of each attempt.
--
-- KEYS  1 meta  2 journal  3… the trial of each segment, each trial at most once
-- ARGV  1 channel  2 the event up to its list of segments
--       then for each segment: attempt, token, first sequence number, number of reports, last timestamp, the segment
--
-- Returns for each segment: the attempt's orders (see order), 'fenced' when the attempt is not the one that holds the lease, or 'gap' when
-- reports before it never arrived. While the journal is full, an attempt without an intent is told to 'wait' with more, behind its orders:
-- this batch is written all the same. A segment from 0 on without reports only asks for the answer. A segment that is already in the
-- journal is not written again, so a batch may be sent any number of times; it must then be cut as it was.

local answers, accepted = {}, {}
for i = 3, #KEYS do
  local at = 2 + (i - 3) * 6
  local first, count = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local have = redis.call('HMGET', KEYS[i], 'attempt', 'token', 'state', 'sequence', 'orders')
  local last = number(have[4], -1)
  if have[1] ~= ARGV[at + 1] or have[2] ~= ARGV[at + 2] or have[3] ~= 'running' then
    answers[i - 2] = 'fenced'
  elseif count > 0 and first == last + 1 then
    redis.call('HSET', KEYS[i], 'sequence', first + count - 1, 'timestamp', ARGV[at + 5])
    accepted[#accepted + 1] = ARGV[at + 6]
    answers[i - 2] = have[5]
  elseif first + count - 1 <= last then
    answers[i - 2] = have[5]
  else
    answers[i - 2] = 'gap'
  end
end
if #accepted > 0 then
  append(KEYS[1], KEYS[2], ARGV[1], ARGV[2] .. '\221' .. struct.pack('>I4', #accepted) .. table.concat(accepted))
end
local full = is_full(KEYS[1])
for i, answer in ipairs(answers) do answers[i] = or_wait(answer, full) end
return answers
