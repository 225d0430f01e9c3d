-- Journal and publish a batch of reports as one entry. The answer has the orders of each attempt.
--
-- KEYS  1 meta of the experiment, whose other keys share its prefix and slot
-- ARGV  1 channel of the journal  2 the event up to its list of segments
--       then for each segment: trial (each at most once), attempt, token, first sequence number, number of reports,
--       last timestamp, the segment
--
-- Returns for each segment: the attempt's orders (see order), 'fenced' if the attempt does not hold the lease, or 'gap'
-- if earlier reports never arrived. While the journal is full, this batch is still written, but 'wait' is added to the
-- orders of attempts without an intent. A segment with first sequence number 0 and no reports only asks for the orders.
--
-- A journaled segment is not written again, so a batch may be sent any number of times, with the same segments.

local prefix = string.sub(KEYS[1], 1, -5)
local answers, accepted = {}, {}
for at = 3, #ARGV, 7 do
  local trial, first, count = prefix .. 'trial:' .. ARGV[at], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local have = redis.call('HMGET', trial, 'attempt', 'token', 'state', 'sequence', 'orders')
  local last = number(have[4], -1)
  local answer = 'gap'
  if have[1] ~= ARGV[at + 1] or have[2] ~= ARGV[at + 2] or have[3] ~= 'running' then
    answer = 'fenced'
  elseif count > 0 and first == last + 1 then
    redis.call('HSET', trial, 'sequence', first + count - 1, 'timestamp', ARGV[at + 5])
    accepted[#accepted + 1] = ARGV[at + 6]
    answer = have[5]
  elseif first + count - 1 <= last then
    answer = have[5]
  end
  answers[#answers + 1] = answer or ''
end
if #accepted > 0 then
  local event = ARGV[2] .. '\221' .. struct.pack('>I4', #accepted) .. table.concat(accepted)
  append(KEYS[1], prefix .. 'journal', ARGV[1], event)
end
local wait = wait_if_full(KEYS[1])
for i, answer in ipairs(answers) do answers[i] = or_wait(answer, wait) end
return answers
