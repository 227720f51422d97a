/** The look of what is said beside the matter. */
export const DIM = { class: "pbb-dim" };
