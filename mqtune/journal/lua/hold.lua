-- Reserve attempts that workers have received and not claimed yet, so that they are not published again.
--
-- KEYS  1 staged  2… the trial of each attempt
-- ARGV  1 milliseconds of the reservation, then for each attempt: attempt, worker, milliseconds for which it has been
--       importing the trainable, or '' if it is not
--
-- Returns the number of reserved attempts. Attempts that are not staged are skipped. A later reservation replaces an
-- earlier one. Idempotent.

also_when_full('ZREM', KEYS[1])
local now, count = now_ms(), 0
for i = 2, #KEYS do
  local at = 2 + (i - 2) * 3
  local have = redis.call('HMGET', KEYS[i], 'attempt', 'state')
  if have[1] == ARGV[at] and have[2] == 'staged' then
    local since = ARGV[at + 2] ~= '' and now - ARGV[at + 2] or ''
    redis.call('HSET', KEYS[i], 'held_until', now + ARGV[1], 'held_by', ARGV[at + 1], 'importing_since', since)
    count = count + 1
  end
end
return count
