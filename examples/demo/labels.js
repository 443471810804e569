// The handler of label jobs, in JavaScript: node executor.js labels.js
"use strict";

const { appendFileSync } = require("node:fs");

exports.label = (_args, { shipment, weight, city }, context) => {
  const text = `${shipment}, ${weight.toFixed(1)} kg, ${city}`;
  // One line, one write: the effect of a job is told by its id, so twice is as good as once.
  appendFileSync("labels.jsonl", JSON.stringify({ job_id: context.job_id, what: text }) + "\n");
  return text;
};
