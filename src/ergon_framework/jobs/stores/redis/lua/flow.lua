-- The life of a flow. The rules are those of core/flow.py, which this file repeats because a script
-- cannot call it; a test compares the two. In which states an event may happen, which states are
-- final or stopping, and how a flow that stops ends is put in from there.
--
-- ``may`` tells whether an event can happen. Each of the others lets one happen: it changes the flow,
-- and answers whether the end of the step counts, and which sweep begins.

local function flow_machine()
  local allowed, stopping, ends = FLOW_EVENTS, STOPPING_FLOWS, FLOW_ENDS
  local machine = {is_stopping = stopping, is_final = FINAL_FLOWS}

  function machine.may(flow, event)
    if not allowed[event][flow[STANDING]] then return false end
    if event ~= "retry" then return true end
    return flow[STEPS_FAILED] + flow[STEPS_CANCELLED] > 0 or stopping[flow[STANDING]] == true
  end

  -- The end of the flow, if its last step has ended.
  local function close(flow)
    if flow[UNFINISHED] ~= 0 then return end
    if flow[STANDING] == FLOW_RUNNING and flow[UNCOUNTED] == 0 then
      flow[STANDING] = FLOW_COMPLETED
    else
      flow[STANDING] = ends[flow[STANDING]] or flow[STANDING]
    end
  end

  -- What follows while there is an end that did not count.
  local function by_policy(flow)
    if flow[ON_FAILURE] == HOLD_REST then
      flow[STANDING] = FLOW_HELD
      return nil
    end
    flow[STANDING] = FLOW_FAILING
    return SWEEP_CANCEL
  end

  -- A held flow goes on when the last failure was decided upon.
  local function decide(flow)
    if flow[STANDING] == FLOW_HELD and flow[UNCOUNTED] == 0 then flow[STANDING] = FLOW_RUNNING end
  end

  -- A flow that had completed runs again when it gets a step that has not ended.
  local function revive(flow)
    if flow[STANDING] == FLOW_COMPLETED and flow[UNFINISHED] ~= 0 then
      flow[STANDING] = FLOW_RUNNING
    end
  end

  function machine.steps_added(flow, number)
    flow[UNFINISHED] = flow[UNFINISHED] + number
    revive(flow)
    close(flow)
    return false, nil
  end

  function machine.step_ended(flow, status, has_counted)
    local counts, sweep = false, nil
    flow[UNFINISHED] = flow[UNFINISHED] - 1
    if status == COMPLETED then
      flow[STEPS_COMPLETED], counts = flow[STEPS_COMPLETED] + 1, true
    else
      local which = status == FAILED and STEPS_FAILED or STEPS_CANCELLED
      flow[which] = flow[which] + 1
      local stops = stopping[flow[STANDING]]
      if has_counted then
        counts = false
      elseif flow[ON_FAILURE] == GO_ON and not stops then
        counts = true
      else
        flow[UNCOUNTED] = flow[UNCOUNTED] + 1
        if not stops then sweep = by_policy(flow) end
      end
    end
    close(flow)
    return counts, sweep
  end

  function machine.step_returned(flow, status, was_counted)
    local which = status == FAILED and STEPS_FAILED or STEPS_CANCELLED
    flow[UNFINISHED], flow[which] = flow[UNFINISHED] + 1, flow[which] - 1
    if not was_counted then flow[UNCOUNTED] = flow[UNCOUNTED] - 1 end
    decide(flow)
    revive(flow)
    close(flow)
    return false, nil
  end

  function machine.step_skipped(flow)
    flow[UNCOUNTED] = flow[UNCOUNTED] - 1
    decide(flow)
    close(flow)
    return true, nil
  end

  function machine.cancel(flow)
    flow[STANDING] = FLOW_CANCELLING
    close(flow)
    return false, SWEEP_CANCEL
  end

  function machine.retry(flow)
    flow[STANDING] = FLOW_RUNNING
    return false, SWEEP_RETRY
  end

  function machine.skip(flow)
    flow[STANDING] = FLOW_RUNNING
    return false, SWEEP_SKIP
  end

  function machine.sweep_ended(flow)
    local sweep
    if flow[STANDING] ~= FLOW_HELD and flow[UNCOUNTED] ~= 0 then sweep = by_policy(flow) end
    close(flow)
    return false, sweep
  end

  return machine
end
